"""The transaction in which an `async def` job finishes itself.

    @job
    async def settle(order_id: int) -> None:
        async with drain.async_transaction() as session:
            await session.execute(update(Order).where(Order.id == order_id).values(settled=True))

As `transaction`, with the same statements under the same token; while the server works, the other jobs of the event
loop go on.
"""

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
    """Open an async session whose writes and the job's finish commit together, at the end of the block.

    What `transaction` says holds here too. If the task is cancelled within the block, as by `asyncio.timeout` or by the
    timeout of the job, all is rolled back.

    Yields:
        A SQLAlchemy AsyncSession on DRAIN_DATABASE_URL. It commits by itself, and what it has loaded can still be read
        afterwards. Needs greenlet, which the extra `[async]` brings.

    Raises:
        LeaseLostError: Another worker has claimed the job; everything is rolled back.
        JobCancelledError: The job was cancelled; everything is rolled back.
        NoCurrentJobError: No job is running here.
        TransactionError: The job has, or had, its transaction already; or the block would commit by itself.
        DrainError: greenlet is missing.
    """
    attempt = current_attempt()
    _require_greenlet()
    # Here, since SQLAlchemy takes longer to import than all the rest, and most jobs have no session.
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
    """Do as `async_transaction`, on a bare psycopg connection, without SQLAlchemy and greenlet.

    The connection is this job's until the block ends, and then the next one's: do not keep it. The effect of a plain
    SET stays; SET LOCAL ends with the transaction.

    Yields:
        An AsyncConnection on DRAIN_DATABASE_URL, in a transaction; its `transaction()` is a savepoint, and its
        `commit()` is refused.

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


def _require_greenlet() -> None:
    try:
        importlib.import_module("greenlet")
    except ImportError:
        raise DrainError(
            f"async_transaction() needs greenlet: {extras.install('async')}; async_psycopg_transaction() does not"
        ) from None
