"""The blocking wait for an id."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import redis

from drain.errors import UnavailableError
from drain.wire.connection import connect, reachable
from drain.wire.ids import AwaitedId
from drain.wire.keys import NOTHING, SUSPENDED, intermediate_key, queue_of
from drain.wire.sources import SourceLists

WAIT_SECONDS = 30
_ANSWER_SECONDS = 10.0
# While lists are skipped.
_LOOK_AGAIN_SECONDS = 1.0


class Waiter:
    """Waits for one id; only `end_wait` is thread-safe."""

    def __init__(self, redis_url: str, where: str, sources: SourceLists, others: redis.Redis) -> None:
        self._where = where
        self._sources = sources
        self._others = others
        self._pool = connect(redis_url)
        self._client: redis.Redis | None = None
        self._client_id: int | None = None

    def wait(self, seconds: float) -> AwaitedId | None:
        """Pop one id; None on timeout or `end_wait`."""
        try:
            with reachable(self._where):
                return self._popped(min(seconds, WAIT_SECONDS))
        except UnavailableError:
            self._client_id = None
            raise

    def _popped(self, seconds: float) -> AwaitedId | None:
        client = self._opened()
        sources = self._sources
        keys = sources.ready
        # `pop` soon checks the other lists.
        if len(keys) < len(sources.keys):
            seconds = min(seconds, _LOOK_AGAIN_SECONDS)
        if len(sources.keys) == len(keys) == 1:
            (key,) = keys
            to = intermediate_key(queue_of(key))
            moved, is_suspended = self._and_suspended(client, "BLMOVE", key, to, "LEFT", "RIGHT", seconds)
            return AwaitedId(key, moved, is_suspended) if moved is not None else None
        awaited = keys or sources.not_skipped or [NOTHING]
        popped, is_suspended = self._and_suspended(client, "BLPOP", *awaited, seconds)
        return AwaitedId(popped[0].decode(), popped[1], is_suspended) if popped is not None else None

    def _and_suspended(self, client: Any, *command: Any) -> tuple[Any, bool]:
        # A pipeline would use a connection unknown to `end_wait`.
        connection: Any = client.connection
        connection.send_packed_command(connection.pack_commands([command, ("EXISTS", SUSPENDED)]))
        try:
            answer = connection.read_response()
        except redis.ResponseError:
            connection.read_response()
            raise
        try:
            return answer, bool(connection.read_response())
        except redis.RedisError:
            if answer is None:
                raise
            # Keep the popped id; `pop` asks again.
            self._client_id = None
            return answer, True

    def _opened(self) -> Any:
        if self._client is None:
            self._client = self._pool.client()  # type: ignore[no-untyped-call]
        if self._client_id is None:
            self._client_id = self._client.client_id()
            # `end_wait` works from here on. Before, short timeouts let a worker stop despite a hanging Redis.
            _socket(self._client).settimeout(WAIT_SECONDS + _ANSWER_SECONDS)
        return self._client

    def end_wait(self) -> None:
        """Make `wait` return, if necessary by shutting its connection down."""
        client, client_id = self._client, self._client_id
        if client is None or client_id is None:
            return
        try:
            with reachable(self._where):
                self._others.client_unblock(client_id)
        except UnavailableError:
            with suppress(OSError, AttributeError):
                _socket(client).shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
        self._pool.close()


def _socket(client: redis.Redis) -> Any:
    """Return a client's socket; redis-py has no public API."""
    connection: Any = client.connection
    return connection._sock
