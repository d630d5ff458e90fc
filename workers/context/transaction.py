"""The transaction in which a job finishes itself.

    @job
    def settle(order_id: int) -> None:
        charge(order_id, idempotency_key=drain.current_job().key)
        with drain.transaction() as session:
            session.execute(update(Order).where(Order.id == order_id).values(settled=True))

The writes on that session and the job's finish are one commit: both, exactly once, or neither. A job that
another worker has claimed cannot finish, so its writes are rolled back.

The order of writes: first the session is flushed, then the finish is executed under the fence of the claim, then both
are committed. So a stale claim is noticed before anything is durable. From the flush on, a refused heartbeat does
not mean a lost lease: it may be the effect of the job's own finish.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from drain.failpoints import FailurePoint, failpoint
from drain.workers.context.connection_cache import bare, driver_of
from drain.workers.context.current import current_attempt
from drain.workers.context.finish_guard import finishing, only_one
from drain.workers.context.loading import load

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


@contextmanager
def transaction() -> Iterator[Session]:
    """Open a session whose writes and the job's finish commit together, at the end of the block.

    If the block raises, all of it is rolled back, and the job fails or retries as by any exception. Once it
    has committed, the job is finished, and whatever it does or raises afterwards changes nothing about that.

    Under REPEATABLE READ or SERIALIZABLE a block that outlasts a heartbeat cannot commit: the heartbeat has
    changed the row of the job. Where that is the level of your database, choose lease and heartbeat longer.

    Yields:
        A SQLAlchemy session on DRAIN_DATABASE_URL; `drain.stage` takes it too. It commits by itself, and
        what it has loaded can still be read afterwards.

    Raises:
        LeaseLostError: Another worker has claimed the job; everything is rolled back.
        JobCancelledError: The job was cancelled; everything is rolled back.
        NoCurrentJobError: No job is running here.
        TransactionError: The job has, or had, its transaction already; or the block would commit by itself.
    """
    # Here, since SQLAlchemy takes longer to import than all the rest, and most jobs have no session.
    load("drain.workers.context.session")
    from drain.workers.context.session import session_of

    attempt = current_attempt()
    with only_one(attempt):
        with session_of(attempt.database_url) as session:
            yield session
            session.flush()
            failpoint(FailurePoint.WRITTEN)
            with finishing(attempt, driver_of(session.connection())):
                session.commit_with_the_finish()
        failpoint(FailurePoint.FINISHED_AND_COMMITTED)


@contextmanager
def psycopg_transaction() -> Iterator[psycopg.Connection[Any]]:
    """Do as `transaction`, on a bare psycopg connection, which costs a job of one statement four fifths as much.

    The connection is this job's until the block ends, and then the next one's: do not keep it. The effect of a plain
    SET stays; SET LOCAL ends with the transaction.

    Yields:
        A connection on DRAIN_DATABASE_URL, in a transaction; its `transaction()` is a savepoint, and its `commit()`
        is refused. `drain.stage` takes it too.

    Raises:
        LeaseLostError, JobCancelledError, NoCurrentJobError, TransactionError: As `transaction`.
    """
    attempt = current_attempt()
    with only_one(attempt), bare(attempt.database_url) as connection:
        yield connection
        failpoint(FailurePoint.WRITTEN)
        with finishing(attempt, connection):
            connection.commit()
        failpoint(FailurePoint.FINISHED_AND_COMMITTED)


def load_sessions() -> None:
    """Import the modules that sessions need, if SQLAlchemy is imported already, for processes forked later."""
    if "sqlalchemy" in sys.modules:
        load("drain.workers.context.session")
    if {"sqlalchemy.ext.asyncio", "greenlet"} <= sys.modules.keys():
        load("drain.workers.context.async_session")
