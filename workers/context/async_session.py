"""SQLAlchemy session of an async job's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.util import greenlet_spawn

from drain.workers.context.async_connection import JobAsyncConnection
from drain.workers.context.async_connection_cache import driver_of, drop, of_session
from drain.workers.context.session import JobSession


@asynccontextmanager
async def session_of(database_url: str) -> AsyncIterator[AsyncSession]:
    """Yield a session on a kept connection; used after the block, it opens its own."""
    async with of_session(database_url) as connection:
        session = AsyncSession(
            connection,
            sync_session_class=JobSession,
            expire_on_commit=False,
            join_transaction_mode="control_fully",
        )
        below = cast(JobSession, session.sync_session)
        below.is_lent = True
        try:
            yield session
        except BaseException:
            # As in `session.session_of`; an unanswered statement is abandoned.
            below.is_lent = False
            drop(connection)
            await session.invalidate()
            raise
        finally:
            below.is_lent = False
            session.bind = connection.engine
            session.sync_session.bind = connection.engine.sync_engine
            await session.close()


async def driver_of_session(session: AsyncSession) -> JobAsyncConnection:
    """Return the psycopg connection below a session."""
    return await session.run_sync(lambda below: driver_of(below.connection()))


async def commit_with_the_finish(session: AsyncSession) -> None:
    """Commit with the job's finish."""
    await greenlet_spawn(cast(JobSession, session.sync_session).commit_with_the_finish)
