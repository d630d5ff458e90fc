"""As `transaction`, for `async def` jobs."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from drain import extras
from drain.errors import DrainError
from drain.failpoints import FailurePoint, failpoint
from drain.workers.context.async_connection_cache import bare
from drain.workers.context.current import current_attempt
from drain.workers.context.finish_guard import finishing, only_one
from drain.workers.context.loading import load

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession


@asynccontextmanager
async def async_transaction() -> AsyncIterator[AsyncSession]:
    """Open an async session whose writes commit together with the job's finish, at the end of the block.

    As `transaction`. If the task is cancelled within the block, everything is rolled back.

    Yields:
        SQLAlchemy AsyncSession on DRAIN_DATABASE_URL, committed automatically; loaded objects stay readable. Needs
        greenlet, from the extra `[async]`.

    Raises:
        LeaseLostError: The job was claimed elsewhere; all is rolled back.
        JobCancelledError: The job was cancelled; all is rolled back.
        NoCurrentJobError: No job is running here.
        TransactionError: The job has, or had, its transaction; or the block would commit on its own.
        DrainError: greenlet is missing.
    """
    attempt = current_attempt()
    require_greenlet("async_transaction")
    load("drain.workers.context.async_session")
    from drain.workers.context.async_session import commit_with_the_finish, driver_of_session, session_of

    with only_one(attempt):
        async with session_of(attempt.database_url) as session:
            yield session
            await session.flush()
            failpoint(FailurePoint.WRITTEN)
            with finishing(attempt, await driver_of_session(session)):
                await commit_with_the_finish(session)
        failpoint(FailurePoint.FINISHED_AND_COMMITTED)


@asynccontextmanager
async def async_psycopg_transaction() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Open an async psycopg transaction, without SQLAlchemy and greenlet; see `async_transaction`.

    Do not keep the connection: the next job gets it. A plain SET stays; SET LOCAL ends with the transaction.

    Yields:
        AsyncConnection on DRAIN_DATABASE_URL, in a transaction; `transaction()` is a savepoint, `commit()` is refused.

    Raises:
        LeaseLostError, JobCancelledError, NoCurrentJobError, TransactionError: As `async_transaction`.
    """
    attempt = current_attempt()
    with only_one(attempt):
        async with bare(attempt.database_url) as connection:
            yield connection
            failpoint(FailurePoint.WRITTEN)
            with finishing(attempt, connection):
                await connection.commit()
        failpoint(FailurePoint.FINISHED_AND_COMMITTED)


def require_greenlet(caller: str) -> None:
    """Raise DrainError without greenlet."""
    try:
        importlib.import_module("greenlet")
    except ImportError:
        raise DrainError(
            f"{caller}() needs greenlet: {extras.install('async')}; async_psycopg_{caller.removeprefix('async_')}() "
            "does not"
        ) from None
