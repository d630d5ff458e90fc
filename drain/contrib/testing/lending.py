"""Connections for transactions of a test's jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg.pq.abc import PGconn

from drain.contrib.testing.nested import LentAsyncConnection, LentConnection, Nested
from drain.workers.context import async_connection_cache
from drain.workers.context.async_connection import JobAsyncConnection
from drain.workers.context.connection import JobConnection
from drain.workers.context.connection_cache import driver_of

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

T = TypeVar("T", bound=Nested)


class Lender:
    """Lends a test's session to its jobs."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._engine: sqlalchemy.Engine | None = None
        self._async_engine: AsyncEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None

    def lends(self, pgconn: PGconn) -> bool:
        """Return True for the lent session."""
        return pgconn is self._pgconn

    @contextmanager
    def bare(self) -> Iterator[JobConnection]:
        """Yield a connection within a savepoint: its commit ends it, an exception rolls it back."""
        with _within_savepoint(self._connect()) as connection:
            yield connection

    @contextmanager
    def of_session(self) -> Iterator[sqlalchemy.Connection]:
        """Do as `bare`, with SQLAlchemy."""
        import sqlalchemy

        if self._engine is None:
            self._engine = sqlalchemy.create_engine(
                "postgresql+psycopg://", creator=self._connect, poolclass=sqlalchemy.NullPool
            )
        with self._engine.connect() as connection, _within_savepoint(_nested(driver_of(connection))):
            yield connection

    @asynccontextmanager
    async def async_bare(self) -> AsyncIterator[JobAsyncConnection]:
        """Do as `bare`, asynchronously."""
        async with self._in_turn():
            with _within_savepoint(await self._connect_async()) as connection:
                yield connection

    @asynccontextmanager
    async def async_of_session(self) -> AsyncIterator[AsyncConnection]:
        """Do as `of_session`, asynchronously."""
        import sqlalchemy
        from sqlalchemy.ext.asyncio import create_async_engine

        if self._async_engine is None:
            self._async_engine = create_async_engine(
                "postgresql+psycopg://", async_creator=self._connect_async, poolclass=sqlalchemy.NullPool
            )
        async with self._in_turn(), self._async_engine.connect() as connection:
            below = connection.sync_connection
            assert below is not None  # noqa: S101  (it has been started)
            with _within_savepoint(_nested(async_connection_cache.driver_of(below))):
                yield connection

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Wait for transactions of other tasks, which would mix with this one on the same session."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if task is self._holder:
            yield
            return
        if self._loop is not loop:
            self._loop, self._turn = loop, asyncio.Lock()
        async with self._turn:
            self._holder = task
            try:
                yield
            finally:
                self._holder = None

    def _connect(self) -> LentConnection:
        connection = LentConnection(self._pgconn)
        connection.be_ready()
        return connection

    async def _connect_async(self) -> LentAsyncConnection:
        connection = LentAsyncConnection(self._pgconn)
        await connection.be_ready()
        return connection


def _nested(driver: object) -> Nested:
    assert isinstance(driver, Nested)  # noqa: S101  (the engine has no other creator)
    return driver


@contextmanager
def _within_savepoint(connection: T) -> Iterator[T]:
    connection.begin()
    try:
        yield connection
        connection.end()
    except BaseException:
        connection.undo()
        raise
