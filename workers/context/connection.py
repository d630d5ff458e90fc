"""The connection of a job's transaction: it commits together with the job's finish, and at no other time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from drain.database import postgres
from drain.database.cursor import TransactionCursor
from drain.tables import cancellations, finishes
from drain.workers.context.finish_guard import note_heartbeat, refusal, too_early
from drain.workers.context.guarded import GuardedConnection
from drain.workers.errors import INTERRUPTIONS

# Timeout for the cancellation of a statement.
_CANCEL_SECONDS = 5.0


class JobConnection(GuardedConnection, psycopg.Connection[Any]):
    """Commits with the finish of a job, and at no other time."""

    def be_ready(self) -> None:
        """Begin transactions from now on, and note the settings with which `is_fit` compares."""
        self.autocommit = False
        self.cursor_factory = TransactionCursor
        self._note_settings()

    def commit(self) -> None:
        """Finish the job, and commit that together with what has been written: both, or neither.

        Raises:
            LeaseLostError: Another worker has claimed the job; everything is rolled back.
            JobCancelledError: The job was cancelled; everything is rolled back.
            TransactionError: The block of the transaction has not ended; or the job is finished already; or a savepoint
                or a pipeline is still open.
        """
        attempt = self._begin_finish(TransactionCursor)
        claim = attempt.claim
        try:
            attempt.finished = finishes.finish_and_commit(
                self, claim, waits=not attempt.groups_commit, result=attempt.result
            )
        except psycopg.errors.SerializationFailure as error:
            note_heartbeat(error)
            raise
        if attempt.finished:
            return
        is_finished = finishes.is_finished(self, claim)
        is_cancelled = not is_finished and cancellations.is_cancelled(self, claim)
        raise refusal(attempt, is_finished=is_finished, is_cancelled=is_cancelled)

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
        except INTERRUPTIONS:
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
