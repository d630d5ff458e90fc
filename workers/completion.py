"""The transaction in which a job finishes itself.

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
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, cast

import psycopg
import sqlalchemy
from psycopg.pq import TransactionStatus
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from drain import postgres
from drain.crashpoints import CrashPoint, reached
from drain.postgres import Connection
from drain.transitions import inflight
from workers.current import CurrentJob, current_job
from workers.errors import JobTimeoutError, LeaseLostError, TransactionError

_MAY_COMMIT = "drain: the finish is written"
_CANCEL_SECONDS = 5.0


@contextmanager
def transaction() -> Iterator[Session]:
    """A session whose writes and the job's finish commit together, at the end of the block.

    If the block raises, all of it is rolled back, and the job fails or retries as by any exception. Once it
    has committed, the job is finished, and whatever it does or raises afterwards changes nothing about that.

    Under REPEATABLE READ or SERIALIZABLE a block that outlasts a heartbeat cannot commit: the heartbeat has
    changed the row of the job. Where that is the level of your database, choose lease and heartbeat longer.

    Yields:
        A SQLAlchemy session on DRAIN_DATABASE_URL; `drain.stage` takes it too. It commits by itself, and
        what it has loaded can still be read afterwards.

    Raises:
        LeaseLostError: Somebody else has claimed the job; everything is rolled back.
        NoCurrentJobError: No job is running here.
        TransactionError: The job has, or had, its transaction already; or the block would commit by itself.
    """
    job = current_job()
    if job.finished or job.in_transaction:
        raise TransactionError(
            f"job {job.id} has its transaction already; a job has one, since it finishes it"
        )
    job.in_transaction = True
    never_ended = False
    try:
        with _session(job._database_url) as session:
            yield session
            session.flush()
            reached(CrashPoint.WRITTEN)
            # From here on a refused heartbeat may be the echo of our own finish.
            job._lease.settling = True
            _finish(job, session.connection())
            reached(CrashPoint.SETTLED)
            session.commit_with_the_finish()
            job.finished = True
            reached(CrashPoint.SETTLED_AND_COMMITTED)
    except GeneratorExit:
        # Nobody came to the end of the block, and what it wrote is lost: the job must not finish as if it were not.
        never_ended = True
        raise
    finally:
        job.in_transaction = never_ended
        job._lease.settling = job.finished


def _finish(job: CurrentJob, session_connection: sqlalchemy.Connection) -> None:
    connection = cast(Connection, session_connection.connection.driver_connection)
    try:
        done = inflight.finish_once(connection, job.id, job.fencing_token)
    except psycopg.errors.SerializationFailure as error:
        error.add_note("A heartbeat has extended the job's lease since the transaction took its snapshot.")
        raise
    if done:
        return
    if inflight.is_finished(connection, job.id, job.fencing_token):
        job.finished = True
        raise TransactionError(
            f"job {job.id} was finished by its first transaction(), whose commit was not answered; "
            "this one is rolled back"
        )
    raise LeaseLostError(f"job {job.id} has been claimed by somebody else; its writes are rolled back")


class _Session(Session):
    """Commits with the finish, and at no other time."""

    def begin(self, nested: bool = False) -> SessionTransaction:  # noqa: FBT001, FBT002  (SQLAlchemy's own)
        if not nested:
            raise _early()
        return super().begin(nested=True)

    def commit(self) -> NoReturn:
        raise _early()

    def commit_with_the_finish(self) -> None:
        with _may_commit(self.connection()):
            super().commit()


@contextmanager
def _session(database_url: str) -> Iterator[_Session]:
    with _Session(_engine(database_url), expire_on_commit=False) as session:
        try:
            yield session
        except BaseException:
            # A refused commit, or a signal in the middle of anything, may leave the transaction open where
            # the pool takes it for rolled back. Nothing of it may be left for the next one.
            session.invalidate()
            raise


@contextmanager
def _may_commit(connection: sqlalchemy.Connection) -> Iterator[None]:
    info = connection.info
    info[_MAY_COMMIT] = True
    try:
        yield
    finally:
        info[_MAY_COMMIT] = False


def _refuse_to_commit_early(connection: sqlalchemy.Connection) -> None:
    if not connection.info.get(_MAY_COMMIT):
        raise _early()


def _early() -> TransactionError:
    return TransactionError(
        "workers.transaction() begins and commits by itself, together with the job's finish; "
        "use begin_nested() for savepoints, and a session of your own for what is to be committed earlier"
    )


class _JobConnection(psycopg.Connection[Any]):
    """What a signal raises in the middle of a statement leaves the session in order, so that it rolls back."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the answer; if a signal interrupts that, let the server drop the statement first."""
        try:
            return super().wait(gen, *args, **kwargs)
        except (JobTimeoutError, LeaseLostError):
            if self.info.transaction_status == TransactionStatus.ACTIVE:
                # The answer to a statement that was cancelled, or that was quicker, has still to be read.
                with suppress(psycopg.Error), postgres.time_limit(self, _CANCEL_SECONDS):
                    self.cancel_safe(timeout=_CANCEL_SECONDS)
                    super().wait(gen)
            raise


_engines: dict[tuple[int, str], sqlalchemy.Engine] = {}


def _engine(database_url: str) -> sqlalchemy.Engine:
    """The engine of this process: a forked child must not share its parent's connections."""
    key = (os.getpid(), database_url)
    if key not in _engines:
        _engines.clear()
        _engines[key] = sqlalchemy.create_engine(
            "postgresql+psycopg://",
            creator=lambda: _connect(database_url),
            # One is kept. As many as there are `async def` jobs at once may have theirs open.
            pool_size=1,
            max_overflow=-1,
        )
        event.listen(_engines[key], "commit", _refuse_to_commit_early)
        event.listen(_engines[key], "checkout", _look_whether_it_lives)
    return _engines[key]


def _look_whether_it_lives(driver_connection: Connection, _record: object, _proxy: object) -> None:
    """Let the pool replace a connection that has ended since the last job.

    The server has nothing to say on an idle connection but that it ends it. Looking costs a microsecond, and asking,
    as `pool_pre_ping` does, two of the seven exchanges of a job with one statement.
    """
    looking = select.poll()
    looking.register(driver_connection, select.POLLIN)
    if driver_connection.closed or looking.poll(0):
        raise sqlalchemy.exc.DisconnectionError("the connection has ended, or nobody knows what it would say")


def _connect(database_url: str) -> Connection:
    connection = postgres.connect(database_url, "drain job", kind=_JobConnection)
    # The job's statements may take as long as the job; but the locks of a machine that is gone are let go of.
    postgres.set_bounds(connection, statement_seconds=0, lock_seconds=0)
    connection.autocommit = False
    return connection
