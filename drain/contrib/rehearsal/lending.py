"""Connections lent to rehearsed jobs: a commit is checked but not made."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn
from psycopg.sql import Composable

from drain.contrib.rehearsal.session import check_as_a_commit
from drain.contrib.testing.lending import Lender
from drain.contrib.testing.nested import LentAsyncConnection, LentConnection, NestedAsyncCursor, NestedCursor
from drain.database.cursor import AsyncTransactionCursor, TransactionCursor
from drain.workers.errors import TransactionError

# SQL that could begin a writable transaction after the guarded one, despite the session's default.
_WAYS_OUT = re.compile(r"\bAND\s+CHAIN\b|\bREAD\s+WRITE\b|\btransaction_read_only\b", re.IGNORECASE)


def _checked(query: Any, connection: Any) -> Any:
    text = query.as_string(connection) if isinstance(query, Composable) else query
    plain = bytes(text).decode(errors="replace") if isinstance(text, bytes | bytearray) else str(text)
    if _WAYS_OUT.search(plain):
        raise TransactionError("a rehearsal begins no transaction that may write behind its own")
    return query


class RehearsedCursor(NestedCursor):
    """Cursor that refuses to begin a writable transaction."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> RehearsedCursor:
        """Check and execute a statement."""
        super().execute(_checked(query, self.connection), params, **options)
        return self


class RehearsedAsyncCursor(NestedAsyncCursor):
    """Async variant of `RehearsedCursor`."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> RehearsedAsyncCursor:
        """Check and execute a statement."""
        await super().execute(_checked(query, self.connection), params, **options)
        return self


class RehearsedConnection(LentConnection):
    """Connection of a job's transaction; a commit ends a savepoint."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Open a rehearsal cursor."""
        if self.cursor_factory in (psycopg.Cursor, TransactionCursor, NestedCursor):
            self.cursor_factory = RehearsedCursor
        return super().cursor(*args, **options)

    def commit(self) -> None:
        """Check as a commit would; mark the job finished, unless a step commits."""
        attempt = self._begin_finish(TransactionCursor)
        check_as_a_commit(self.pgconn)
        attempt.finished = self.step is None
        self.step = None
        self.end()


class RehearsedAsyncConnection(LentAsyncConnection):
    """Async variant of `RehearsedConnection`."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Open a rehearsal cursor."""
        if self.cursor_factory in (psycopg.AsyncCursor, AsyncTransactionCursor, NestedAsyncCursor):
            self.cursor_factory = RehearsedAsyncCursor
        return super().cursor(*args, **options)

    async def commit(self) -> None:
        """Check as a commit would; mark the job finished, unless a step commits."""
        attempt = self._begin_finish(AsyncTransactionCursor)
        check_as_a_commit(self.pgconn)
        attempt.finished = self.step is None
        self.step = None
        self.end()


class RehearsalLender(Lender):
    """Lends the rehearsal's session to its job."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self._session = pgconn

    def _connect(self) -> RehearsedConnection:
        connection = RehearsedConnection(self._session)
        connection.be_ready()
        return connection

    async def _connect_async(self) -> RehearsedAsyncConnection:
        connection = RehearsedAsyncConnection(self._session)
        await connection.be_ready()
        return connection
