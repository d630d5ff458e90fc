"""The SQLAlchemy session of a job's transaction: it commits with the finish, and at no other time.

Imported by the first job that asks for a session: without SQLAlchemy a worker starts in half the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

# The dialect of the engine, which would import it at the first connection.
import sqlalchemy.dialects.postgresql.psycopg
from sqlalchemy.orm import Session, SessionTransaction

from drain.workers.context.connection_cache import of_session
from drain.workers.context.finish_guard import too_early


class JobSession(Session):
    """Refuses to begin or commit by itself."""

    def begin(self, nested: bool = False) -> SessionTransaction:  # noqa: FBT001, FBT002  (SQLAlchemy's own)
        """Begin a savepoint; the transaction itself has begun already."""
        if not nested:
            raise too_early()
        return super().begin(nested=True)

    def commit(self) -> NoReturn:
        """Refuse."""
        raise too_early()

    def commit_with_the_finish(self) -> None:
        """Commit what has been written, and the job's finish with it."""
        super().commit()


def _session_on(connection: sqlalchemy.Connection) -> JobSession:
    # A job that has looked at its tables by `session.get_bind()` has begun the transaction already.
    return JobSession(connection, expire_on_commit=False, join_transaction_mode="control_fully")


@contextmanager
def session_of(database_url: str) -> Iterator[JobSession]:
    """Yield a session on a connection of `kept.of_session`; used after the block, it opens one of its own."""
    with of_session(database_url) as connection, _session_on(connection) as session:
        try:
            yield session
        except BaseException:
            # A refused commit, or a signal in the middle of anything, may leave the transaction open where SQLAlchemy
            # believes it to be rolled back. Nothing of it may be left for the next session.
            session.invalidate()
            raise
        finally:
            # Another job may have this connection by then, and would commit what the session writes.
            session.bind = connection.engine
