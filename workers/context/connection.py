"""Connection of a job's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from drain.database import postgres
from drain.database.cursor import TransactionCursor
from drain.tables import cancellations, finishes, steps
from drain.workers.context.finish_guard import note_heartbeat, refusal, too_early
from drain.workers.context.guarded import GuardedConnection
from drain.workers.errors import INTERRUPTIONS

_CANCEL_SECONDS = 5.0


class JobConnection(GuardedConnection, psycopg.Connection[Any]):
    """Commits only with the finish of a job."""

    def be_ready(self) -> None:
        """Begin transactions; note settings for `is_fit`."""
        if not postgres.is_pooled(self):
            self.execute(postgres.NOTICE_DEAD_CLIENT)
        self.autocommit = False
        self.cursor_factory = TransactionCursor
        self._note_settings()

    def commit(self) -> None:
        """Finish the job, or record its step, and commit its writes; or neither."""
        attempt = self._begin_finish(TransactionCursor)
        claim, step = attempt.claim, self.step
        try:
            if step is not None:
                done = finishes.commit_under_fence(
                    self, claim, steps.record_or_fail(self, step), steps.record_parameters(claim, step)
                )
            else:
                done = attempt.finished = finishes.finish_and_commit(
                    self, claim, waits=not attempt.groups_commit, result=attempt.result
                )
        except psycopg.errors.SerializationFailure as error:
            note_heartbeat(error)
            raise
        if done:
            if step is not None:
                self.finishing = self.step = None
            return
        is_finished = step is None and finishes.is_finished(self, claim)
        is_cancelled = not is_finished and cancellations.is_cancelled(self, claim)
        raise refusal(attempt, is_finished=is_finished, is_cancelled=is_cancelled, step=step)

    def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  (psycopg's own)
        """Refuse autocommit."""
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
            # With nothing begun, psycopg would begin and commit a transaction.
            self.execute("SELECT")
        self._savepoints += 1
        try:
            with super().transaction(savepoint_name, force_rollback) as savepoint:
                yield savepoint
        finally:
            self._savepoints -= 1

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the answer; if interrupted, cancel the statement."""
        try:
            return super().wait(gen, *args, **kwargs)
        except INTERRUPTIONS:
            # After a signal in the first statement's cursor, psycopg may begin no transaction: the next one would
            # commit on its own.
            self._autocommit = False
            if self.info.transaction_status == TransactionStatus.ACTIVE:
                # The answer to a cancelled or quicker statement must be read.
                with suppress(psycopg.Error), postgres.time_limit(self, _CANCEL_SECONDS):
                    self.cancel_safe(timeout=_CANCEL_SECONDS)
                    super().wait(gen)
            if self._pipeline is None and self.pgconn.pipeline_status != PipelineStatus.OFF:
                # In the cursor's pipeline, another statement would wait forever.
                self.close()
            raise
