"""Connections that rehearsed jobs get for their transactions: a commit is checked, finishes nothing, and is undone."""

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

# Ways to a transaction that may write, behind the one that cannot be committed: the default of the session is no bar.
_WAYS_OUT = re.compile(r"\bAND\s+CHAIN\b|\bREAD\s+WRITE\b|\btransaction_read_only\b", re.IGNORECASE)


def _checked(query: Any, connection: Any) -> Any:
    text = query.as_string(connection) if isinstance(query, Composable) else query
    plain = bytes(text).decode(errors="replace") if isinstance(text, bytes | bytearray) else str(text)
    if _WAYS_OUT.search(plain):
        raise TransactionError("a rehearsal begins no transaction that may write behind its own")
    return query


class RehearsedCursor(NestedCursor):
    """Cursor that leads to no transaction which may write behind that of the rehearsal."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> RehearsedCursor:
        """Execute a statement, but for one that begins such a transaction."""
        super().execute(_checked(query, self.connection), params, **options)
        return self


class RehearsedAsyncCursor(NestedAsyncCursor):
    """Cursor of an async connection, as `RehearsedCursor`."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> RehearsedAsyncCursor:
        """Execute a statement, but for one that begins such a transaction."""
        await super().execute(_checked(query, self.connection), params, **options)
        return self


class RehearsedConnection(LentConnection):
    """Connection of a job's transaction, whose commit is the end of a savepoint."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Open a cursor that knows that the transaction is a rehearsal."""
        if self.cursor_factory in (psycopg.Cursor, TransactionCursor, NestedCursor):
            self.cursor_factory = RehearsedCursor
        return super().cursor(*args, **options)

    def commit(self) -> None:
        """Check what a commit would, and let the job believe that it is finished."""
        attempt = self._begin_finish(TransactionCursor)
        check_as_a_commit(self.pgconn)
        attempt.finished = True
        self.end()


class RehearsedAsyncConnection(LentAsyncConnection):
    """Connection of an async job's transaction, as `RehearsedConnection`."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Open a cursor that knows that the transaction is a rehearsal."""
        if self.cursor_factory in (psycopg.AsyncCursor, AsyncTransactionCursor, NestedAsyncCursor):
            self.cursor_factory = RehearsedAsyncCursor
        return super().cursor(*args, **options)

    async def commit(self) -> None:
        """Check what a commit would, and let the job believe that it is finished."""
        attempt = self._begin_finish(AsyncTransactionCursor)
        check_as_a_commit(self.pgconn)
        attempt.finished = True
        self.end()


class RehearsalLender(Lender):
    """Lends the session of a rehearsal to its job.

    Args:
        pgconn: The session, in its transaction.
    """

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
