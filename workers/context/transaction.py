"""The transaction in which a job finishes itself.

The session is flushed, the finish executed under the claim's fence, and both committed, or neither: a stale claim is
noticed before anything is durable.
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
from drain.workers.context.shared import shared_by

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


@contextmanager
def transaction() -> Iterator[Session]:
    """Open a session whose writes commit together with the job's finish, at the end of the block.

    If the block raises, everything is rolled back and the job fails as usual. Once committed, the job is finished,
    even if it fails afterwards.

    Under REPEATABLE READ or SERIALIZABLE, a block that outlasts a heartbeat cannot commit, since the heartbeat
    changes the job's row: choose a longer lease and heartbeat.

    Yields:
        SQLAlchemy session on DRAIN_DATABASE_URL, also for `drain.stage`, committed automatically; loaded objects stay
        readable.

    Raises:
        LeaseLostError: The job was claimed elsewhere; all is rolled back.
        JobCancelledError: The job was cancelled; all is rolled back.
        NoCurrentJobError: No job is running here.
        TransactionError: The job has, or had, its transaction; or the block would commit on its own.
    """
    load("drain.workers.context.session")
    from drain.workers.context.session import session_of

    attempt = current_attempt()
    with only_one(attempt, may_share=True):
        shared = shared_by(attempt, for_session=True)
        with shared.lend_session(attempt) if shared else session_of(attempt.database_url) as session:
            yield session
            session.flush()
            failpoint(FailurePoint.WRITTEN)
            with finishing(attempt, driver_of(session.connection())):
                session.commit_with_the_finish()
        if shared is None:
            failpoint(FailurePoint.FINISHED_AND_COMMITTED)


@contextmanager
def psycopg_transaction() -> Iterator[psycopg.Connection[Any]]:
    """Open a psycopg transaction, a fifth cheaper for a one-statement job; see `transaction`.

    Do not keep the connection: the next job gets it. A plain SET stays; SET LOCAL ends with the transaction.

    Yields:
        Connection on DRAIN_DATABASE_URL, in a transaction, also for `drain.stage`; `transaction()` is a savepoint,
        `commit()` is refused.

    Raises:
        LeaseLostError, JobCancelledError, NoCurrentJobError, TransactionError: As `transaction`.
    """
    attempt = current_attempt()
    with only_one(attempt, may_share=True):
        shared = shared_by(attempt)
        with shared.lend(attempt) if shared else bare(attempt.database_url) as connection:
            yield connection
            failpoint(FailurePoint.WRITTEN)
            with finishing(attempt, connection):
                connection.commit()
            if shared is None:
                failpoint(FailurePoint.FINISHED_AND_COMMITTED)


def load_sessions() -> None:
    """Import sessions' dependencies for processes forked later, if SQLAlchemy is loaded."""
    if "sqlalchemy" in sys.modules:
        load("drain.workers.context.session")
    if {"sqlalchemy.ext.asyncio", "greenlet"} <= sys.modules.keys():
        load("drain.workers.context.async_session")
