"""The enqueuer drains committed rows of `staged_jobs` into Redis; it moves a batch while the last one is pushed.

The queue of a row decides:

    tracked    moved to `inflight_jobs`: committed, then pushed. In the other order a worker could look for a row
               that is not there yet. Redelivery finds rows of a crash in between.
    forward    pushed, then committed. A crash in between pushes the job twice; none is lost before Redis has it.
               One Redis call per transaction, so that a refusal leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Self

from drain.admission.admission import Admission
from drain.database.cursor import TransactionCursor
from drain.database.postgres import Connection
from drain.enqueuer import leader
from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.batches import Batches
from drain.enqueuer.deliveries import Deliveries
from drain.enqueuer.due_rows import DueRows
from drain.enqueuer.matcher import Matcher
from drain.enqueuer.mover import Batch, Mover
from drain.enqueuer.objectives import FlowObjectives
from drain.enqueuer.pusher import Pusher, is_short
from drain.enqueuer.thin_queues import ThinQueues
from drain.enqueuer.unblocker import Unblocker
from drain.tables import leader_progress
from drain.tables.lanes import Lane
from drain.tables.leader_progress import Progress
from drain.tables.staged import Place
from drain.wire import Producer, Traces

SESSION = (
    # A crash that forgets a move leaves the row in staged_jobs; a worker's claim flushes the move before it.
    "SET synchronous_commit = off",
    # Scans start at the head of an index, independent of statistics. A plan made for a just truncated partition would
    # read and sort it whole, and be kept while it fills up.
    "SET enable_seqscan = off",
    "SET enable_sort = off",
    # A disabled node's huge cost would trigger JIT.
    "SET jit = off",
    "SET plan_cache_mode = force_generic_plan",
    "SET default_transaction_isolation = 'read committed'",
    # Arrays are sent as text, some with NULL.
    "SET array_nulls = on",
)


class Enqueuer:
    """Drains on the connection that holds the leader's lock, on one thread, inside its `with` block.

    Args:
        state: The last leader's numbers.
        adaptive_batch_size: Replaces `batch_size`, with experience from earlier terms.
        depth: See `Depths.fixed`.
        alive: Called between statements, for the watchdog.
    """

    # One thing: the order of a batch's steps.

    def __init__(
        self,
        connection: Connection,
        redis: Producer,
        state: Progress,
        *,
        forward_queues: frozenset[str] = frozenset(),
        batch_size: int = 2500,
        adaptive_batch_size: AdaptiveBatchSize | None = None,
        depth: int | None = 0,
        alive: Callable[[], None] = lambda: None,
        traces: Traces | None = None,
        thin_queues: ThinQueues | None = None,
        flow_objectives: FlowObjectives | None = None,
    ) -> None:
        connection.execute("; ".join(SESSION))
        connection.cursor_factory = TransactionCursor
        redis.identify(*leader_progress.identity(connection))
        self.connection = connection
        self.redis = redis
        self.deliveries = deliveries = Deliveries(connection, state)
        size = adaptive_batch_size or AdaptiveBatchSize(batch_size)
        mover = Mover(connection, redis, deliveries, forward_queues=forward_queues, alive=alive)
        self.admission = Admission(connection, redis, depth=depth, forward_queues=forward_queues)
        self._due_rows = DueRows(connection, size, alive, self.admission)
        self._batches = Batches(connection, self._due_rows, mover, deliveries, size=size, alive=alive)
        self._pusher = Pusher(redis, deliveries, traces)
        self.thin_queues = thin_queues or ThinQueues(redis)
        self._unblocker = Unblocker(connection, alive, flow_objectives)
        self.matcher = Matcher(connection)
        self._forwarded = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pusher.close()

    def drain(self, keep_on: Callable[[], bool] = lambda: True, *, looks_again: bool = True) -> int:
        """Run batches until nothing may leave or `keep_on()` is false, and push all; return how many rows left.

        Args:
            looks_again: Finish with an empty batch; otherwise stop after one that left nothing.

        Raises:
            UnavailableError: Redis failed; rows moved but not pushed are redelivered.
            OwnedByAnotherError: Another database feeds the namespace; likewise.
            psycopg.OperationalError: Rolled back.
        """
        total = 0
        # At least one batch: other work must not starve the drain.
        while True:
            size = self.run_once()
            total += size
            more = self.admission.may_find_more or self._unblocker.has_more
            goes_on = looks_again or self.may_leave_some if size else more
            if not goes_on or not keep_on():
                break
        self.flush()
        return total

    def run_once(self) -> int:
        """Move one batch and leave its push running; return how many rows left, 0 only if none may.

        Raises:
            UnavailableError: Redis refused the previous batch, or a forwarded row of this one.
            psycopg.OperationalError: Rolled back.
        """
        self.note_notifications()
        self.admission.look_when_due()
        waits = self._unblocker.waits
        if waits:
            self._unblock()
        batch = self._batches.run_once()
        self.wait_for_push()
        self._forwarded += len(batch.forwarded)
        # Looks come after the push, which a lone job awaits, but before that of a thread: 5 ms, measured, for the GIL.
        if is_short(batch.moved):
            self._push(batch)
        if not waits and self._unblock() and not batch.size:
            return self.run_once()
        self.matcher.run_once()
        if not is_short(batch.moved):
            self._push(batch)
        return batch.size

    def _push(self, batch: Batch) -> None:
        if batch.moved:
            self.admission.moved(batch.moved)
            thin = self.thin_queues.choose({row.queue for row in batch.moved})
            limits = self.admission.limits_running
            self._pusher.start(batch.moved, batch.last_delivery, {queue: limits(queue) for queue in thin})
            self.thin_queues.look_when_due()

    def note_notifications(self) -> None:
        """Note notifications so far, which psycopg keeps without bound until then."""
        self.notified(leader.received(self.connection))

    def notified(self, names: Collection[str]) -> bool:
        """Note notifications of `leader`; return True if jobs were staged."""
        self.admission.notice_ends(names)
        is_staged = leader.STAGED in names
        if is_staged:
            self.admission.expect_arrivals()
            self.matcher.expect_events()
        return is_staged

    def unblock_all(self) -> None:
        """See `Unblocker.run_all`."""
        self._unblocker.run_all()

    def _unblock(self) -> bool:
        found = self._unblocker.run_once()
        if found:
            self.admission.expect_arrivals()
        return found

    def flush(self) -> None:
        """Call `wait_for_push`, then record the watermark."""
        self.wait_for_push()
        self.deliveries.record_watermark()

    def noticed_lengths(self, queues: Collection[str]) -> None:
        """Note lengths after redelivery's push."""
        lengths = {queue: size for queue, size in self.redis.take_pushed_lengths().items() if queue in queues}
        self.admission.pushed(dict.fromkeys(lengths, 0), lengths)

    def wait_for_push(self) -> None:
        """Wait until everything moved is pushed."""
        if push := self._pusher.wait():
            self.admission.pushed(push.accepted + push.refused, push.lengths)

    def look(self) -> bool:
        """See `Admission.look_when_due`, `Unblocker.run_once` and `Matcher.run_once`."""
        return self.admission.look_when_due() or self._unblocker.run_once() or self.matcher.run_once()

    @property
    def may_leave_some(self) -> bool:
        """True if due rows with room, or edges to compare, may be left."""
        left = self._batches.has_left_some or self._unblocker.has_more
        return left or self._due_rows.may_leave_some or self.admission.may_find_more

    @property
    def next_look_at(self) -> float:
        """See `Admission.next_look_at`, `Unblocker.next_look_at` and `Matcher.next_look_at`."""
        looks = self.admission.next_look_at, self._unblocker.next_look_at, self.matcher.next_look_at
        return min(looks)

    @property
    def transactions_per_second(self) -> float:
        """See `TransactionRate`."""
        return self._unblocker.transactions.per_second

    @property
    def delivered(self) -> int:
        """Jobs accepted by Redis."""
        return self._pusher.accepted + self._forwarded

    @property
    def refused(self) -> int:
        """Tracked jobs refused by Redis, still in `inflight_jobs`."""
        return self._pusher.refused

    @property
    def places(self) -> Mapping[Lane, Place]:
        """See `LaneGroup.places`."""
        return self._due_rows.places

    @property
    def awaits_bulk(self) -> bool:
        """See `DueRows.awaits_bulk`."""
        return self._due_rows.awaits_bulk
