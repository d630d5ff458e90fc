"""Connections of `drain web`: bounded in number, per client too, and in the time to send a request."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from drain.contrib.web.clients import network_of

# Upper bounds of all connections, and of those of one client.
CONNECTIONS, OF_A_CLIENT = 512, 64
# Time for the head of a request to arrive, in seconds.
HEAD_SECONDS = 5.0
# States of a client that has not sent all of its request.
_SENDS = (h11.IDLE, h11.SEND_BODY)


class Connection(H11Protocol):
    """Connection of a client; one too many takes the place of another that waits for its client, the oldest first.

    Where all are busy, the oldest ends: that of a live page, as a rule, which its tab opens again.
    """

    most_of_a_client = OF_A_CLIENT
    _network = ""
    _begun_at = 0.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, and make room for it."""
        super().connection_made(transport)
        self._network = network_of(self.client[0] if self.client else "")
        self._begun_at = self.loop.time()
        self._wait()
        of_client = [each for each in self._others() if each._network == self._network]
        self._make_room(of_client, self.most_of_a_client)
        self._make_room(self._others(), CONNECTIONS)

    def data_received(self, data: bytes) -> None:
        """Take in data; the head of the next request has a time of its own."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._wait_no_more()
        elif self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
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
        # At once: many connections may come before the loop gets to the end of this one.
        self.connections.discard(self)
        self.transport.abort()


class ConnectionOfProxy(Connection):
    """Connection of a proxy, which has those of all clients."""

    most_of_a_client = CONNECTIONS
