"""Psycopg connections on the session of the test's own one; their transactions are savepoints.

A second connection object on the same `PGconn` has psycopg's default row factory, cursors and adapters, whatever the
application has set. It prepares no statement, since names would collide, and never closes the session.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from drain.database.cursor import AsyncTransactionCursor, TransactionCursor
from drain.workers.context.async_connection import JobAsyncConnection
from drain.workers.context.connection import JobConnection
from drain.workers.context.finish_guard import too_early

_COMMIT = b"COMMIT"
_numbers = count(1)


class Nested(psycopg.BaseConnection[Any]):
    """Connection on another one's session."""

    _savepoint: bytes | None = None

    def __init__(self, pgconn: PGconn, *args: Any, **options: Any) -> None:
        session: Any = pgconn
        handlers = session.notice_handler, session.notify_handler
        super().__init__(session, *args, **options)
        # Notices go to the application's connection.
        session.notice_handler, session.notify_handler = handlers
        self.prepare_threshold = None

    def __del__(self, *_: Any) -> None:
        """Neither close nor warn: the session is the application's."""

    def begin(self) -> None:
        """Begin a nested transaction."""
        savepoint = b"drain_testing_%d" % next(_numbers)
        self._send(b"SAVEPOINT " + savepoint)
        self._savepoint = savepoint

    def end(self) -> None:
        """Keep writes since `begin`, unless ended."""
        if (savepoint := self._savepoint) is not None:
            self._savepoint = None
            self._send(b"RELEASE SAVEPOINT " + savepoint)

    def undo(self) -> None:
        """Undo writes since `begin`, unless ended."""
        if (savepoint := self._savepoint) is not None:
            self._savepoint = None
            self._send(b"ROLLBACK TO SAVEPOINT " + savepoint)
            self._send(b"RELEASE SAVEPOINT " + savepoint)

    def _send(self, command: bytes) -> None:
        result = self.pgconn.exec_(command)
        if result.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)


class NestedCursor(psycopg.Cursor[Any]):
    """Cursor whose COMMIT ends its connection's savepoint."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> NestedCursor:
        """Execute a statement."""
        connection: Any = self.connection
        if query == _COMMIT:
            connection.end()
        else:
            super().execute(query, params, **options)
        return self


class NestedConnection(Nested, psycopg.Connection[Any]):
    """Synchronous connection on another one's session."""

    def close(self) -> None:
        """Leave the session open."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Open a nested cursor."""
        if self.cursor_factory in (psycopg.Cursor, TransactionCursor):
            self.cursor_factory = NestedCursor
        return super().cursor(*args, **options)

    def rollback(self) -> None:
        """Undo the nested transaction."""
        self.undo()


class LeaderConnection(NestedConnection):
    """Connection with apparent autocommit: transactions are savepoints."""

    def commit(self) -> None:
        """Keep writes."""
        self.end()

    def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  (psycopg's own)
        """Begin a nested transaction where `postgres.transaction` begins one."""
        if not value:
            self.begin()

    def set_isolation_level(self, value: psycopg.IsolationLevel | None) -> None:
        """Keep the test's level: its transaction has begun."""


class LentConnection(NestedConnection, JobConnection):
    """Connection of a job's transaction, whose commit also ends a savepoint."""

    def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  (psycopg's own)
        """Refuse autocommit."""
        if value:
            raise too_early()


class NestedAsyncCursor(psycopg.AsyncCursor[Any]):
    """Cursor whose COMMIT ends its connection's savepoint."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> NestedAsyncCursor:
        """Execute a statement."""
        connection: Any = self.connection
        if query == _COMMIT:
            connection.end()
        else:
            await super().execute(query, params, **options)
        return self


class LentAsyncConnection(Nested, JobAsyncConnection):
    """Async variant of `LentConnection`."""

    async def be_ready(self) -> None:
        """Note loop and settings."""
        self._loop = asyncio.get_running_loop()
        self._note_settings()

    def drop(self) -> None:
        """Leave the session open."""

    async def close(self) -> None:
        """Leave the session open."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Open a nested cursor."""
        if self.cursor_factory in (psycopg.AsyncCursor, AsyncTransactionCursor):
            self.cursor_factory = NestedAsyncCursor
        return super().cursor(*args, **options)

    async def rollback(self) -> None:
        """Undo the nested transaction."""
        self.undo()

    async def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  (psycopg's own)
        """Refuse autocommit."""
        if value:
            raise too_early()
