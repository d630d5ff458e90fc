"""Connections that rehearsed jobs get for their transactions: a commit is checked, finishes nothing, and is undone."""

from __future__ import annotations

from psycopg.pq.abc import PGconn

from drain.database.cursor import AsyncTransactionCursor, TransactionCursor
from drain.rehearsal.session import check_as_a_commit
from drain.testing.lending import Lender
from drain.testing.nested import LentAsyncConnection, LentConnection


class RehearsedConnection(LentConnection):
    """Connection of a job's transaction, whose commit is the end of a savepoint."""

    def commit(self) -> None:
        """Check what a commit would, and let the job believe that it is finished."""
        attempt = self._begin_finish(TransactionCursor)
        check_as_a_commit(self.pgconn)
        attempt.finished = True
        self.end()


class RehearsedAsyncConnection(LentAsyncConnection):
    """Connection of an async job's transaction, as `RehearsedConnection`."""

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
