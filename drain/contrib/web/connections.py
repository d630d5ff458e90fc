"""Bounds on client connections and request times."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from drain.contrib.web.clients import network_of

CONNECTIONS, OF_A_CLIENT = 512, 64
HEAD_SECONDS = 5.0
_SENDS = (h11.IDLE, h11.SEND_BODY)


class Connection(H11Protocol):
    """Connection that evicts another when there are too many: the oldest waiting for its client.

    If all are busy, the oldest is closed, usually a live page's, whose tab reconnects.
    """

    most_of_a_client = OF_A_CLIENT
    _network = ""
    _begun_at = 0.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the request's timer, and make room."""
        super().connection_made(transport)
        self._network = network_of(self.client[0] if self.client else "")
        self._begun_at = self.loop.time()
        self._wait()
        of_client = [each for each in self._others() if each._network == self._network]
        self._make_room(of_client, self.most_of_a_client)
        self._make_room(self._others(), CONNECTIONS)

    def data_received(self, data: bytes) -> None:
        """Receive data; each request head has its own timer."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._wait_no_more()
        elif self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister."""
        self._wait_no_more()
        super().connection_lost(exc)

    @property
    def _is_waiting(self) -> bool:
        return self.conn.their_state in _SENDS or self.transport.is_closing()

    def _others(self) -> list[Connection]:
        connections: Collection[Any] = self.connections
        return [each for each in connections if each is not self]

    def _make_room(self, others: Collection[Connection], most: int) -> None:
        if len(others) >= most:
            min(others, key=lambda each: (not each._is_waiting, each._begun_at))._cut()

    def _wait(self) -> None:
        self._late = self.loop.call_later(HEAD_SECONDS, self._cut)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _cut(self) -> None:
        # Now: more connections may arrive before this one is reported lost.
        self.connections.discard(self)
        self.transport.abort()


class ConnectionOfProxy(Connection):
    """Connection of a proxy, which carries all clients."""

    most_of_a_client = CONNECTIONS
