"""Connections that the jobs of a test get for their transactions, in place of those that a worker keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from psycopg.pq.abc import PGconn

from drain.testing.nested import LentConnection
from workers.context.connection import JobConnection
from workers.context.kept import driver_of

if TYPE_CHECKING:
    import sqlalchemy


class Lender:
    """Lends the session of a test to its jobs; `workers.context.kept` asks it.

    Args:
        pgconn: The session, in the transaction of the test.
    """

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._engine: sqlalchemy.Engine | None = None

    @contextmanager
    def bare(self) -> Iterator[JobConnection]:
        """Yield a connection within a savepoint, which its commit ends; an exception rolls it back."""
        with _within_savepoint(self._connect()) as connection:
            yield connection

    @contextmanager
    def of_session(self) -> Iterator[sqlalchemy.Connection]:
        """Do as `bare`, on a connection of SQLAlchemy's."""
        with self._engine_of_its_own().connect() as connection, _within_savepoint(_driver_of(connection)):
            yield connection

    def _engine_of_its_own(self) -> sqlalchemy.Engine:
        import sqlalchemy

        if self._engine is None:
            self._engine = sqlalchemy.create_engine(
                "postgresql+psycopg://", creator=self._connect, poolclass=sqlalchemy.NullPool
            )
        return self._engine

    def _connect(self) -> LentConnection:
        connection = LentConnection(self._pgconn)
        connection.be_ready()
        return connection


def _driver_of(connection: sqlalchemy.Connection) -> LentConnection:
    driver = driver_of(connection)
    assert isinstance(driver, LentConnection)  # noqa: S101  (the engine has no other creator)
    return driver


@contextmanager
def _within_savepoint(connection: LentConnection) -> Iterator[LentConnection]:
    connection.begin()
    try:
        yield connection
        connection.end()
    except BaseException:
        connection.rollback()
        raise
