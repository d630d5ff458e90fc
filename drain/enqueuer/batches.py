"""Transactions of the drain."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from time import monotonic

import psycopg
from psycopg import IsolationLevel

from drain import metrics
from drain.admission import uniqueness
from drain.admission.held import HeldError
from drain.database import postgres
from drain.database.postgres import Connection
from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.deliveries import Deliveries
from drain.enqueuer.due_rows import DueRows
from drain.enqueuer.forwarding import QueuesRefusedError
from drain.enqueuer.mover import Batch, Mover
from drain.enqueuer.pusher import count_pushed
from drain.failpoints import FailurePoint, failpoint
from drain.tables import staged
from drain.tables.lanes import Lane
from drain.tables.staged import DueJob

log = logging.getLogger(__name__)

# Locked rows are skipped for this long after a lock; this costs a write per row.
_SKIP_LOCKED_SECONDS = 30.0
_CONFLICTS = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
)
# Consecutive; each retry sees the other transaction's commit.
_MOST_CONFLICTS = 10


class Batches:
    """Runs one transaction per batch; finds a row that makes it fail, and moves it to `dead_jobs`.

    Attributes:
        has_left_some: The last batch left selected rows.
    """

    def __init__(
        self,
        connection: Connection,
        due_rows: DueRows,
        mover: Mover,
        deliveries: Deliveries,
        *,
        size: AdaptiveBatchSize,
        alive: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._due_rows = due_rows
        self._mover = mover
        self._deliveries = deliveries
        self._size = size
        self._alive = alive
        self.has_left_some = True
        # Current or failed transaction.
        self._rows: Sequence[DueJob] = ()
        self._lanes: Collection[Lane] = ()
        # May have the failing row; the size stays small until their batches succeed.
        self._suspected: set[Lane] = set()
        self._skip_locked_until = 0.0

    def run_once(self) -> Batch:  # noqa: C901  (one clause for each kind of failure)
        """Move one batch, or smaller ones until a failing row is out of the way.

        Raises:
            UnavailableError: Redis refused forwarded jobs; rolled back.
            psycopg.OperationalError: Rolled back.
        """
        conflicts = 0
        while True:
            began = monotonic()
            try:
                batch = self._transact()
            except HeldError:
                # The next transaction leaves that queue out.
                pass
            except QueuesRefusedError as refusal:
                self._due_rows.refused.add(refusal.queues)
            except _CONFLICTS as error:
                conflicts += 1
                # Even then a row may leave its partition between the snapshot and the lock.
                leaves = isinstance(error, psycopg.errors.SerializationFailure)
                if self._skips_locked() and (conflicts > _MOST_CONFLICTS or not leaves):
                    raise
                self._skip_locked_until = monotonic() + _SKIP_LOCKED_SECONDS
            except psycopg.Error as error:
                suspects = self._count_suspects(error)
                if not suspects:
                    raise
                if suspects == 1:
                    self._suspected.clear()
                    return self._bury_row(_line(error))
                # Halving finds the row, or a size that the server takes.
                self._size.shrink(suspects)
                self._suspected = set(self._lanes or self._due_rows.lanes)
                log.info(
                    "a batch of %d rows failed; trying half of it: %s",
                    suspects,
                    _line(error),
                    extra={"event": "batch_failed"},
                )
            else:
                self._suspected.difference_update(self._lanes)
                self._suspected.intersection_update(self._due_rows.lanes)
                if not self._suspected:
                    self._size.grow(monotonic() - began)
                return batch
            self._alive()

    def _transact(self) -> Batch:
        self._rows, self._lanes = (), ()
        skip_locked = self._skips_locked()
        # Each statement must find the previous one's rows unchanged, or fail. Locked rows cannot change;
        # skipped ones must be seen as they are now.
        isolation = IsolationLevel.READ_COMMITTED if skip_locked else IsolationLevel.REPEATABLE_READ
        with metrics.MOVE_SECONDS.time(), postgres.transaction(self._connection, isolation):
            selection = self._due_rows.select(skip_locked=skip_locked)
            self._rows, self._lanes = selection.rows, selection.lanes
            settled = uniqueness.settle(self._connection, selection.rows)
            standing = settled.standing
            forward = self._mover.read_forwarded(standing)
            if forward.first_left_out is not None:
                selection = selection.before(forward.first_left_out)
                self._rows = selection.rows
                standing = list(takewhile(lambda row: row.id != forward.first_left_out, standing))
            batch = self._mover.move(standing, forward) if standing else Batch()
            batch = replace(batch, superseded=settled.superseded, postponed=settled.postponed)
        self.has_left_some = forward.first_left_out is not None
        if selection.ruled:
            failpoint(FailurePoint.ADMITTED)
        self._due_rows.advance(selection, chain((row.id for row in batch.moved), forward.deliveries))
        if batch.moved:
            self._deliveries.committed(batch.last_delivery)
        if batch.size:
            _count(batch)
        return batch

    def _skips_locked(self) -> bool:
        return monotonic() < self._skip_locked_until

    def _count_suspects(self, error: psycopg.Error) -> int:
        if isinstance(error, psycopg.errors.QueryCanceled):
            # The whole batch timed out, or maturing rows did.
            rows = len(self._rows) or self._size.rows
            return rows if rows > 1 else 0
        return 0 if postgres.fails_for_any_row(error) else len(self._rows)

    def _bury_row(self, explanation: str) -> Batch:
        """Bury the only row; if that fails too, skip it for this term."""
        (row,) = self._rows
        self.has_left_some = True
        log.error("job %d cannot be moved: %s", row.id, explanation, extra={"event": "unreadable"})
        try:
            buried = staged.bury(self._connection, [row.id], "unreadable", explanation)
            failpoint(FailurePoint.BURIED)
        except psycopg.Error as error:
            if postgres.fails_for_any_row(error):
                raise
            log.error(
                "job %d cannot be buried either and stays staged: %s",
                row.id,
                _line(error),
                extra={"event": "not_buried", "job_id": row.id},
            )
            self._due_rows.pass_over_row(row.id)
            return Batch(unreadable=1)
        metrics.DEAD.labels("unreadable").inc(buried)
        return Batch(unreadable=1)


def _count(batch: Batch) -> None:
    metrics.BATCH_SIZE.observe(batch.size)
    metrics.MOVED.inc(len(batch.moved))
    metrics.SUPERSEDED.inc(batch.superseded)
    metrics.DEAD.labels("expired").inc(batch.expired.total())
    for queue, number in batch.expired.items():
        metrics.EXPIRED.labels(metrics.queue_label(queue)).inc(number)
    metrics.DEAD.labels("unreadable").inc(batch.unreadable)
    metrics.count_arrived(batch.forwarded_names)
    count_pushed(Counter(delivery.queue for delivery in batch.forwarded))


def _line(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).partition("\n")[0]
