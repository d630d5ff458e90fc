"""The connection of a job's transaction: it commits together with the job's finish, and at no other time."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from drain.database import postgres
from drain.tables import cancellations, outcomes
from workers.context.current import Attempt
from workers.errors import (
    JobCancelledError,
    JobTimeoutError,
    LeaseLostError,
    TransactionError,
    WorkerStoppedError,
)

if TYPE_CHECKING:
    import sqlalchemy

# Timeout for the cancellation of a statement.
_CANCEL_SECONDS = 5.0


class JobConnection(psycopg.Connection[Any]):
    """Commits with the finish of a job, and at no other time.

    Attributes:
        finishing: The attempt whose job is finished by the next commit; None while no commit is allowed.
    """

    finishing: Attempt | None = None
    _pid = 0
    _savepoints = 0
    _as_opened: tuple[object, ...] = ()

    def be_ready(self) -> None:
        """Begin transactions from now on, and note the settings with which `is_fit` compares."""
        self.autocommit = False
        self._pid = os.getpid()
        self._as_opened = self._settings()

    def is_fit(self) -> bool:
        """Return whether the connection is as it was opened, and so fit for the next job."""
        if self.closed or self.pgconn.transaction_status != TransactionStatus.IDLE or self._savepoints:
            return False
        # All that the server sends on an idle connection is that it ends the session. Polling costs a microsecond;
        # a query, as by SQLAlchemy's `pool_pre_ping`, costs two of the exchanges of a job.
        looking = select.poll()
        looking.register(self, select.POLLIN)
        return self._settings() == self._as_opened and not looking.poll(0)

    def commit(self) -> None:
        """Finish the job, and commit that together with what has been written: both, or neither.

        Raises:
            LeaseLostError: Another worker has claimed the job; everything is rolled back.
            JobCancelledError: The job was cancelled; everything is rolled back.
            TransactionError: The block of the transaction has not ended; or the job is finished already; or a savepoint
                or a pipeline is still open.
        """
        attempt = self.finishing
        if attempt is None:
            raise too_early()
        if os.getpid() != self._pid:
            raise TransactionError(
                "the transaction of a job is for the process that began it, not for a child of it"
            )
        if self._savepoints or self.pgconn.pipeline_status != PipelineStatus.OFF:
            raise TransactionError(
                "a transaction() or pipeline() of psycopg's is still open within the transaction of the job; "
                "all of it is rolled back"
            )
        claim = attempt.claim
        # The job may have replaced these factories; reset them.
        self.row_factory, self.cursor_factory = tuple_row, psycopg.Cursor
        try:
            attempt.finished = outcomes.finish_and_commit(self, claim.id, claim.fencing_token)
        except psycopg.errors.SerializationFailure as error:
            error.add_note(
                "A heartbeat has extended the job's lease since the transaction took its snapshot."
            )
            raise
        if attempt.finished:
            return
        if outcomes.is_finished(self, claim.id, claim.fencing_token):
            attempt.finished = True
            raise TransactionError(
                f"job {claim.id} was finished by its first transaction(), whose commit was not answered; "
                "this one is rolled back"
            )
        if cancellations.is_cancelled(self, claim.id, claim.fencing_token):
            raise JobCancelledError(f"job {claim.id} was cancelled; its writes are rolled back")
        raise LeaseLostError(f"job {claim.id} has been claimed by another worker; its writes are rolled back")

    def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  (psycopg's own)
        """Refuse to let each statement commit by itself."""
        if value:
            raise too_early()
        super().set_autocommit(value)

    def tpc_begin(self, xid: psycopg.Xid | str) -> None:
        """Refuse."""
        del xid
        raise too_early()

    @contextmanager
    def transaction(
        self,
        savepoint_name: str | None = None,
        force_rollback: bool = False,  # noqa: FBT001, FBT002  (psycopg's own)
    ) -> Iterator[psycopg.Transaction]:
        """Begin a savepoint, never a transaction."""
        if self.info.transaction_status == TransactionStatus.IDLE:
            # With nothing begun, psycopg would begin a transaction here, and commit it at the end of the block.
            self.execute("SELECT")
        self._savepoints += 1
        try:
            with super().transaction(savepoint_name, force_rollback) as savepoint:
                yield savepoint
        finally:
            self._savepoints -= 1

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the answer; if a signal interrupts that, let the server drop the statement first."""
        try:
            return super().wait(gen, *args, **kwargs)
        except (JobCancelledError, JobTimeoutError, LeaseLostError, WorkerStoppedError):
            if self.info.transaction_status == TransactionStatus.ACTIVE:
                # The answer to a statement that was cancelled, or that was quicker, has still to be read.
                with suppress(psycopg.Error), postgres.time_limit(self, _CANCEL_SECONDS):
                    self.cancel_safe(timeout=_CANCEL_SECONDS)
                    super().wait(gen)
            raise

    def _settings(self) -> tuple[object, ...]:
        return (
            *(self.row_factory, self.cursor_factory, self.server_cursor_factory, self.prepare_threshold),
            *(self.isolation_level, self.read_only, self.deferrable, self.autocommit),
        )


def too_early() -> TransactionError:
    """Return the error of a job that begins or commits by itself."""
    return TransactionError(
        "the transaction of a job begins and commits by itself, together with the job's finish; use begin_nested(), or "
        "psycopg's transaction(), for savepoints, and a session of your own for what must be committed earlier"
    )


# By process and URL: a forked child must not use its parent's connections, nor close them, which would end them there.
_engines: dict[tuple[int, str], sqlalchemy.Engine] = {}
_kept: dict[tuple[int, str], list[JobConnection]] = {}


@contextmanager
def bare(database_url: str) -> Iterator[JobConnection]:
    """Yield a connection with no transaction open; if the block succeeds, this process keeps one for its next job."""
    kept = _kept.setdefault((os.getpid(), database_url), [])
    connection = _one_of(kept) or _connect(database_url)
    try:
        yield connection
    except BaseException:
        # A refused commit, or a signal in the middle of anything, may have left its transaction open.
        connection.close()
        raise
    # Each `async def` job that runs may use a connection; one is enough to keep.
    if kept or not connection.is_fit():
        connection.close()
    else:
        kept.append(connection)


def _one_of(kept: list[JobConnection]) -> JobConnection | None:
    # Another thread may take the last one in between.
    with suppress(IndexError):
        while True:
            connection = kept.pop()
            if connection.is_fit():
                return connection
            connection.close()
    return None


def engine(database_url: str) -> sqlalchemy.Engine:
    """Return the engine of this process' sessions; its pool keeps one connection, as `bare` does."""
    # Here, since SQLAlchemy takes longer to import than all the rest, and most jobs have no session.
    import sqlalchemy

    key = (os.getpid(), database_url)
    if key not in _engines:
        _engines[key] = sqlalchemy.create_engine(
            "postgresql+psycopg://",
            creator=lambda: _connect(database_url),
            # The pool keeps one connection.
            pool_size=1,
            max_overflow=-1,
        )
        sqlalchemy.event.listen(_engines[key], "checkout", _replace_what_is_not_fit)
    return _engines[key]


def driver_of(connection: sqlalchemy.Connection) -> JobConnection:
    """Return the psycopg connection below a connection of `engine`."""
    return cast(JobConnection, connection.connection.driver_connection)


def close_all() -> None:
    """Close the connections that this process has kept."""
    for (pid, _), made in _engines.items():
        if pid == os.getpid():
            made.dispose()
    for (pid, _), kept in _kept.items():
        while pid == os.getpid() and kept:
            kept.pop().close()


def _replace_what_is_not_fit(connection: JobConnection, _record: object, _proxy: object) -> None:
    if not connection.is_fit():
        import sqlalchemy

        raise sqlalchemy.exc.DisconnectionError("the connection has ended, or is not as it was opened")


def _connect(database_url: str) -> JobConnection:
    # The job's statements may take as long as the job; but the server releases the locks of a machine that is gone.
    settings = postgres.session_settings(statement_seconds=0, lock_seconds=0)
    connection = cast(
        JobConnection, postgres.connect(database_url, "drain job", settings=settings, kind=JobConnection)
    )
    connection.be_ready()
    return connection
