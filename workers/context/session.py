"""SQLAlchemy session of a job's transaction, imported on demand: a worker starts twice as fast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

# Otherwise imported at the first connection.
import sqlalchemy.dialects.postgresql.psycopg
from sqlalchemy.orm import Session, SessionTransaction

from drain.workers.context.connection_cache import of_session
from drain.workers.context.finish_guard import too_early


class JobSession(Session):
    """Session that cannot begin or commit on its own, nor close while a job has it."""

    is_lent = False

    def begin(self, nested: bool = False) -> SessionTransaction:  # noqa: FBT001, FBT002  (SQLAlchemy's own)
        """Begin a savepoint."""
        if not nested:
            raise too_early()
        return super().begin(nested=True)

    def commit(self) -> NoReturn:
        """Refuse."""
        raise too_early()

    def close(self) -> None:
        """Refuse while lent: later writes would be in another transaction, and these rolled back."""
        if self.is_lent:
            raise too_early()
        super().close()

    def commit_with_the_finish(self) -> None:
        """Commit with the job's finish."""
        super().commit()


def _session_on(connection: sqlalchemy.Connection) -> JobSession:
    # A job that looked at its tables by `session.get_bind()` has begun the transaction.
    return JobSession(connection, expire_on_commit=False, join_transaction_mode="control_fully")


@contextmanager
def shared_session_on(connection: sqlalchemy.Connection) -> Iterator[JobSession]:
    """Yield a session in a transaction of several jobs; if the block raises, its writes are undone."""
    with _session_on(connection) as session:
        session.is_lent = True
        try:
            yield session
        finally:
            session.is_lent = False
            # As in `session_of`.
            session.bind = connection.engine


@contextmanager
def session_of(database_url: str) -> Iterator[JobSession]:
    """Yield a session on a kept connection; used after the block, it opens its own."""
    with of_session(database_url) as connection, _session_on(connection) as session:
        session.is_lent = True
        try:
            yield session
        except BaseException:
            # A refused commit or a signal may leave a transaction open that SQLAlchemy believes rolled back.
            session.invalidate()
            raise
        finally:
            session.is_lent = False
            # Another job may have the connection, and would commit later writes.
            session.bind = connection.engine
