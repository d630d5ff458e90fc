"""Connection of a job's transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from drain.database import postgres
from drain.database.cursor import TransactionCursor
from drain.tables import cancellations, finishes, steps
from drain.workers.context.finish_guard import note_heartbeat, refusal, too_early
from drain.workers.context.guarded import GuardedConnection
from drain.workers.errors import INTERRUPTIONS, TransactionError

_CANCEL_SECONDS = 5.0
# Instead of the savepoint of a job that is to finish: nothing undoes its writes alone.
_KEPT = ""
_ENDS_TRANSACTION = re.compile(
    r"\s*(BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|PREPARE\s+TRANSACTION|CLOSE\s+ALL|"
    r"ROLLBACK(?!(\s+(WORK|TRANSACTION))?\s+TO))\b",
    re.IGNORECASE,
)


class JobConnection(GuardedConnection, psycopg.Connection[Any]):
    """Commits only with the finish of a job.

    Attributes:
        pending: Commands sent with the next statement.
        savepoint: Of the running job, in a transaction that jobs share; see `SharedTransaction`.
        notices_dead_client: Whether the server could be asked to.
    """

    pending: Sequence[bytes] = ()
    savepoint: str | None = None
    notices_dead_client = False

    def be_ready(self) -> None:
        """Begin transactions; note settings for `is_fit`."""
        if not postgres.is_pooled(self):
            self.notices_dead_client = self.execute(postgres.NOTICE_DEAD_CLIENT).rowcount > 0
        self.autocommit = False
        self.cursor_factory = TransactionCursor
        self._note_settings()

    def commit(self) -> None:
        """Finish the job, or record its step, and commit its writes; or neither."""
        attempt = self._begin_finish(TransactionCursor)
        if self.savepoint is not None:
            self._require_transaction()
            # From here on SQLAlchemy, its listeners and interruptions may still raise.
            self.savepoint, attempt.finished = _KEPT, True
            return
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

    def rollback(self) -> None:
        """Undo the job's writes."""
        if self.savepoint is None:
            super().rollback()
        elif self._savepoints:
            raise psycopg.ProgrammingError("rollback() cannot be used within transaction()")
        elif not self.pending and self.savepoint != _KEPT:
            with self.lock:
                self.wait(self._exec_command(f"ROLLBACK TO {self.savepoint}".encode()))

    def check_statement(self, query: object) -> None:
        """Raise TransactionError for a statement that would end a shared transaction."""
        text = query.decode(errors="replace") if isinstance(query, bytes) else query
        if isinstance(text, str) and _ENDS_TRANSACTION.match(text):
            raise too_early()

    def _require_transaction(self) -> None:
        status = self.pgconn.transaction_status
        if status == TransactionStatus.INERROR:
            raise psycopg.errors.InFailedSqlTransaction("a statement of the job's transaction has failed")
        if not self.pending and status != TransactionStatus.INTRANS:
            raise too_early()

    def _start_query(self) -> Any:
        if self.pending and not self._autocommit:
            commands, self.pending = self.pending, ()
            for command in commands:
                yield from self._exec_command(command)
        yield from super()._start_query()

    def set_isolation_level(self, value: psycopg.IsolationLevel | None) -> None:
        """Refuse in a shared transaction."""
        self._refuse_if_shared("isolation_level")
        super().set_isolation_level(value)

    def set_read_only(self, value: bool | None) -> None:  # noqa: FBT001  (psycopg's own)
        """Refuse in a shared transaction."""
        self._refuse_if_shared("read_only")
        super().set_read_only(value)

    def set_deferrable(self, value: bool | None) -> None:  # noqa: FBT001  (psycopg's own)
        """Refuse in a shared transaction."""
        self._refuse_if_shared("deferrable")
        super().set_deferrable(value)

    def _refuse_if_shared(self, setting: str) -> None:
        if self.savepoint is not None:
            raise TransactionError(f"{setting} cannot be set in a transaction shared with other jobs")

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
        if self.pending or self.info.transaction_status == TransactionStatus.IDLE:
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
