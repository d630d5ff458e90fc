"""Connections kept for async jobs' transactions."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar, cast

from drain.database import async_postgres
from drain.workers.context.async_connection import JobAsyncConnection
from drain.workers.context.connection_cache import APPLICATION_NAME, is_as_made, settings_of_jobs
from drain.workers.context.lent_connections import lender

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

# Keyed as in `connection_cache`.
_engines: dict[tuple[int, str], AsyncEngine] = {}
_kept: dict[tuple[int, str], list[JobAsyncConnection]] = {}
_kept_for_sessions: dict[tuple[int, str], list[AsyncConnection]] = {}
# Of each kind.
_MOST = 1

_Kept = TypeVar("_Kept")


@asynccontextmanager
async def bare(database_url: str) -> AsyncIterator[JobAsyncConnection]:
    """Yield an idle connection; keep one after success."""
    if (lending := lender.get()) is not None:
        async with lending.async_bare() as lent:
            yield lent
        return
    kept = _kept.setdefault((os.getpid(), database_url), [])
    connection = _one_of(kept, _itself) or await _connect(database_url)
    try:
        yield connection
    except BaseException:
        # A refused commit or cancelled task may leave its transaction open.
        connection.drop()
        raise
    if len(kept) >= _MOST or not connection.is_fit():
        connection.drop()
    else:
        kept.append(connection)


@asynccontextmanager
async def of_session(database_url: str) -> AsyncIterator[AsyncConnection]:
    """Yield a connection for a session; see `bare`."""
    if (lending := lender.get()) is not None:
        async with lending.async_of_session() as lent:
            yield lent
        return
    kept = _kept_for_sessions.setdefault((os.getpid(), database_url), [])
    connection = _one_of(kept, _driver_of_kept) or await _engine(database_url).connect()
    try:
        yield connection
    except BaseException:
        await _discard(connection)
        raise
    if len(kept) >= _MOST or not _is_fit(connection):
        await _discard(connection)
    else:
        kept.append(connection)


def _one_of(kept: list[_Kept], driver_of: Callable[[_Kept], JobAsyncConnection | None]) -> _Kept | None:
    with suppress(IndexError):
        while True:
            connection = kept.pop()
            driver = driver_of(connection)
            if driver is not None and not driver.is_free():
                kept.append(connection)
                return None
            if driver is not None and driver.is_fit():
                return connection
            if driver is not None:
                driver.drop()
    return None


def _itself(connection: JobAsyncConnection) -> JobAsyncConnection:
    return connection


def _driver_of_kept(connection: AsyncConnection) -> JobAsyncConnection | None:
    """Return None if closed, or changed for the next job."""
    below = connection.sync_connection
    return driver_of(below) if below is not None and is_as_made(below) else None


def _is_fit(connection: AsyncConnection) -> bool:
    driver = _driver_of_kept(connection)
    return driver is not None and driver.is_fit()


def drop(connection: AsyncConnection) -> None:
    """Close at once."""
    below = connection.sync_connection
    if below is not None and not below.closed and not below.invalidated:
        driver_of(below).drop()


async def _discard(connection: AsyncConnection) -> None:
    # SQLAlchemy would wait for a server that may never answer.
    drop(connection)
    with suppress(Exception):
        await connection.invalidate()
    with suppress(Exception):
        await connection.close()


def _engine(database_url: str) -> AsyncEngine:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    key = (os.getpid(), database_url)
    if key not in _engines:
        _engines[key] = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: _connect(database_url),
            poolclass=sqlalchemy.NullPool,
        )
    return _engines[key]


def driver_of(connection: sqlalchemy.Connection) -> JobAsyncConnection:
    """Return the psycopg connection below SQLAlchemy's."""
    return cast(JobAsyncConnection, connection.connection.driver_connection)


def close_all() -> None:
    """Close kept connections of all loops."""
    for (pid, _), for_sessions in _kept_for_sessions.items():
        while pid == os.getpid() and for_sessions:
            drop(for_sessions.pop())
    for (pid, _), kept in _kept.items():
        while pid == os.getpid() and kept:
            kept.pop().drop()


async def _connect(database_url: str) -> JobAsyncConnection:
    connection = await async_postgres.connect(
        database_url, APPLICATION_NAME, settings=settings_of_jobs(database_url), kind=JobAsyncConnection
    )
    await connection.be_ready()
    return connection
