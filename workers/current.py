"""What a running job can ask of its own claim, and the transaction in which it finishes itself.

    @job
    def settle(order_id: int) -> None:
        charge(order_id, idempotency_key=workers.current_job().key)
        with workers.transaction() as session:
            session.execute(update(Order).where(Order.id == order_id).values(settled=True))

What is written on that session and the job's finish are one commit: both, exactly once, or neither. A job
whose lease was taken over cannot finish, so what it wrote is rolled back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn, cast

import sqlalchemy
from sqlalchemy.orm import Session

from drain import postgres
from drain.crashpoints import CrashPoint, reached
from drain.postgres import Connection
from drain.transitions import inflight
from drain.transitions.inflight import Claim
from workers.errors import LeaseLostError, NoCurrentJobError, TransactionError
from workers.lease import Lease


@dataclass(slots=True)
class CurrentJob:
    """The job that is running here.

    Attributes:
        id: Its id in the tables.
        name: The name that it was staged under.
        queue: Its queue.
        tag: Where it was staged.
        context: JSON text of what its stager gave along; None if nothing.
        attempt: 1 for the first. Deferrals do not count.
        fencing_token: Grows with each claim. A store that keeps the highest one it has seen, and refuses
            lower ones, is safe from workers that come back late.
        key: The same for every attempt, and no other job has it: for services that take an idempotency key.
        finished: Its `transaction()` has committed.
    """

    id: int
    name: str
    queue: str
    tag: str | None
    context: str | None
    attempt: int
    fencing_token: int
    key: str
    finished: bool
    _lease: Lease
    _database_url: str
    _in_transaction: bool = False

    @classmethod
    def of(cls, claim: Claim, key: str, lease: Lease, database_url: str) -> CurrentJob:
        """The job of a claim that was taken a moment ago."""
        return cls(
            id=claim.id,
            name=claim.job_name,
            queue=claim.queue,
            tag=claim.tag,
            context=claim.context,
            attempt=claim.attempts,
            fencing_token=claim.fencing_token,
            key=key,
            finished=False,
            _lease=lease,
            _database_url=database_url,
        )

    @property
    def lease_expires_at(self) -> datetime:
        """Until when the lease holds by the database's clock; the heartbeat moves it on."""
        return self._lease.expires_at

    @property
    def lease_seconds_left(self) -> float:
        """For how long the lease holds, as far as is known; 0 once it is lost or has run out."""
        return self._lease.seconds_left()

    @property
    def lease_lost(self) -> bool:
        """Whether somebody else has claimed the job: then stop, nothing that you do can finish it."""
        return self._lease.lost


_current: ContextVar[CurrentJob | None] = ContextVar("current_job", default=None)


def current_job() -> CurrentJob:
    """The job that is running in this context.

    Raises:
        NoCurrentJobError: None is. A thread that a job starts by itself has a context of its own.
    """
    job = _current.get()
    if job is None:
        raise NoCurrentJobError("no job is running here; this can be asked only inside of a job's function")
    return job


@contextmanager
def running(job: CurrentJob) -> Iterator[None]:
    """Make `job` the current one for as long as the block runs."""
    token = _current.set(job)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def transaction() -> Iterator[Session]:
    """A session whose writes and the job's finish commit together, at the end of the block.

    If the block raises, all of it is rolled back, and the job fails or retries as by any exception. Once it
    has committed, the job is finished, and whatever it does or raises afterwards changes nothing about that.

    Yields:
        A SQLAlchemy session on DRAIN_DATABASE_URL; `drain.stage` takes it too. It commits by itself.

    Raises:
        LeaseLostError: Somebody else has claimed the job; everything is rolled back.
        NoCurrentJobError: No job is running here.
        TransactionError: The job has, or had, its transaction already.
    """
    job = current_job()
    if job.finished or job._in_transaction:
        raise TransactionError(
            f"job {job.id} has its transaction already; a job has one, since it finishes it"
        )
    job._in_transaction = True
    try:
        with _Session(_engine(job._database_url)) as session:
            yield session
            session.flush()
            reached(CrashPoint.WRITTEN)
            # From here on a refused heartbeat may be the echo of our own finish.
            job._lease.settling = True
            connection = cast(Connection, session.connection().connection.driver_connection)
            if not inflight.finish(connection, job.id, job.fencing_token):
                raise LeaseLostError(
                    f"job {job.id} has been claimed by somebody else; its writes are rolled back"
                )
            reached(CrashPoint.SETTLED)
            session.commit_with_the_finish()
            job.finished = True
            reached(CrashPoint.SETTLED_AND_COMMITTED)
    finally:
        job._in_transaction = False
        job._lease.settling = job.finished


class _Session(Session):
    """Commits with the finish, and at no other time."""

    def commit(self) -> NoReturn:
        raise TransactionError(
            "workers.transaction() commits at the end of its block, together with the job's finish; "
            "use a session of your own for what is to be committed earlier"
        )

    def commit_with_the_finish(self) -> None:
        super().commit()


_engines: dict[tuple[int, str], sqlalchemy.Engine] = {}


def _engine(database_url: str) -> sqlalchemy.Engine:
    """The engine of this process: a forked child must not share its parent's connections."""
    key = (os.getpid(), database_url)
    if key not in _engines:
        _engines.clear()
        _engines[key] = sqlalchemy.create_engine(
            "postgresql+psycopg://",
            creator=lambda: postgres.connect(database_url, "drain job", autocommit=False),
            pool_size=1,
            pool_pre_ping=True,
        )
    return _engines[key]
