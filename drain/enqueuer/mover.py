"""Moves a batch out of `staged_jobs`, in the transaction that read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from drain.database.postgres import Connection
from drain.enqueuer import forwarding
from drain.enqueuer.deliveries import Deliveries
from drain.enqueuer.forwarding import ForwardBatch, QueuesRefusedError
from drain.failpoints import FailurePoint, failpoint
from drain.tables import staged
from drain.tables.staged import DueJob
from drain.wire import Delivery, Producer

_EXPIRED = "its expires_at had passed before it was drained"


@dataclass(frozen=True, slots=True)
class Batch:
    """Result of one transaction.

    Attributes:
        moved: Committed rows to push; the last has the number `last_delivery`.
        forwarded: Jobs pushed; `forwarded_names` counts them by queue and name.
        expired: Buried rows by queue.
        unreadable: Undeliverable rows buried.
    """

    moved: Sequence[DueJob] = ()
    forwarded: Sequence[Delivery] = ()
    forwarded_names: Counter[tuple[str, str]] = field(default_factory=Counter)
    expired: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    last_delivery: int = 0
    superseded: int = 0
    postponed: int = 0

    @property
    def size(self) -> int:
        """Rows no longer due."""
        gone = len(self.moved) + len(self.forwarded) + self.expired.total() + self.unreadable
        return gone + self.superseded + self.postponed


class Mover:
    """Sends rows to `inflight_jobs`, to Redis alone, or to `dead_jobs`."""

    def __init__(
        self,
        connection: Connection,
        redis: Producer,
        deliveries: Deliveries,
        *,
        forward_queues: frozenset[str],
        alive: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._redis = redis
        self._deliveries = deliveries
        self._forward_queues = forward_queues
        self._alive = alive

    def read_forwarded(self, rows: Sequence[DueJob]) -> ForwardBatch:
        """Encode forwarded rows that one call carries."""
        ids = [row.id for row in rows if not row.expired and row.queue in self._forward_queues]
        return forwarding.read_batch(self._connection, self._redis.namespace, ids) if ids else ForwardBatch()

    def move(self, rows: Sequence[DueJob], forward: ForwardBatch) -> Batch:
        """Move rows; committed on return unless some are in `forward`.

        Raises:
            QueuesRefusedError: Redis refused forwarded jobs: roll back.
        """
        failpoint(FailurePoint.READ)
        expired = [row for row in rows if row.expired]
        moved = [row for row in rows if not row.expired and row.queue not in self._forward_queues]
        if expired:
            staged.bury(self._connection, [row.id for row in expired], "expired", _EXPIRED)
        self._alive()
        before = self._deliveries.last_delivery
        last_delivery = before + len(moved)
        # Saves a round trip; forwarded jobs are pushed before the commit.
        commits = not forward.deliveries and not forward.unreadable
        if moved:
            ids = [row.id for row in moved]
            staged.move(self._connection, ids, before, self._deliveries.pushed_up_to, commits=commits)
        self._alive()
        self._forward(forward)
        if not commits:
            failpoint(FailurePoint.MOVED)
        # Saves a look-up per row.
        forwarded = [row for row in rows if row.id in forward.deliveries] if forward.deliveries else ()
        return Batch(
            moved=moved,
            forwarded=list(forward.deliveries.values()),
            forwarded_names=Counter((row.queue, row.job_name) for row in forwarded),
            expired=Counter(row.queue for row in expired),
            unreadable=len(forward.unreadable),
            last_delivery=last_delivery,
        )

    def _forward(self, forward: ForwardBatch) -> None:
        for job_id, explanation in forward.unreadable.items():
            staged.bury(self._connection, [job_id], "unreadable", explanation)
        if not forward.deliveries:
            return
        # Before the push: if another session changed a row, this fails and nothing is pushed.
        staged.delete_forwarded(self._connection, list(forward.deliveries))
        failpoint(FailurePoint.FORWARDED)
        refused = self._redis.push_together(list(forward.deliveries.values()))
        if refused:
            raise QueuesRefusedError(refused)
        failpoint(FailurePoint.PUSHED_FORWARD)
