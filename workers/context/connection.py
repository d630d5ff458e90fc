"""The connection of a job's transaction: it commits together with the job's finish, and at no other time."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from drain.database import postgres
from drain.database.cursor import TransactionCursor
from drain.tables import cancellations, finishes
from workers.context.current import Attempt
from workers.errors import (
    Dead,
    JobCancelledError,
    JobTimeoutError,
    LeaseLostError,
    TransactionError,
    WorkerStoppedError,
)

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
        self.cursor_factory = TransactionCursor
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
        self.row_factory, self.cursor_factory = tuple_row, TransactionCursor
        try:
            attempt.finished = finishes.finish_and_commit(
                self, claim.id, claim.fencing_token, waits=not attempt.groups_commit
            )
        except psycopg.errors.SerializationFailure as error:
            error.add_note(
                "A heartbeat has extended the job's lease since the transaction took its snapshot."
            )
            raise
        if attempt.finished:
            return
        if finishes.is_finished(self, claim.id, claim.fencing_token):
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
        except (Dead, JobCancelledError, JobTimeoutError, LeaseLostError, WorkerStoppedError):
            # For a moment, in which the signal may have come, the cursor of the first statement lets psycopg believe
            # that no transaction is to begin. The next statement would commit by itself.
            self._autocommit = False
            if self.info.transaction_status == TransactionStatus.ACTIVE:
                # The answer to a statement that was cancelled, or that was quicker, has still to be read.
                with suppress(psycopg.Error), postgres.time_limit(self, _CANCEL_SECONDS):
                    self.cancel_safe(timeout=_CANCEL_SECONDS)
                    super().wait(gen)
            if self._pipeline is None and self.pgconn.pipeline_status != PipelineStatus.OFF:
                # Interrupted within the cursor's own pipeline: a further statement would wait for ever.
                self.close()
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
