"""The enqueuer: takes committed rows out of `staged_jobs` in batches, and feeds them to Redis.

A batch is one repeatable-read transaction. What becomes of its rows depends on their queue:

    tracked    moved to `inflight_jobs`; committed first, then pushed. The other way round a worker could
               look for the row before it is there. A crash between the two is found by redelivery.
    forward    pushed first, then committed, as in the article that this pattern has its name from. A crash
               between the two pushes the job twice; it is never lost before Redis has it. At most one call
               of Redis in a transaction, so that a refusal leaves nothing there.

The next batch is moved while the last one is being pushed: the server works on the one while this
process works on the other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import monotonic
from typing import Self

import psycopg
from psycopg import IsolationLevel

from drain import metrics, wire
from drain.database import postgres
from drain.database.postgres import Connection
from drain.enqueuer import forwarding
from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.cursor import PATIENT, URGENT, Scan, ScanCursor
from drain.enqueuer.forwarding import ForwardBatch, QueuesRefusedError
from drain.failpoints import FailurePoint, failpoint
from drain.tables import leader_progress as notes
from drain.tables import staged
from drain.tables.leader_progress import Progress
from drain.tables.staged import DueJob, Key
from drain.wire import Delivery, Producer

log = logging.getLogger(__name__)

# Scheduled rows that mature with one batch: more than it takes, so that priorities count among them.
_MATURE_LIMIT = 10_000
# While urgent rows come in, every other batch leaves the patient ones out, and takes so many of them in between:
# what comes in meanwhile waits until they have been pushed.
_BESIDE_URGENT = 250
_URGENT_SECONDS = 1.0
# How long to pass over locked rows, which costs a write for each row, after having met one.
_SKIP_LOCKED_SECONDS = 30.0
# How long to pass over the forwarded jobs of a queue that Redis has refused.
_REFUSED_SECONDS = 10.0
# What the leader sets for its session.
SESSION = (
    # Safe for a move: if the server crashes and forgets it, the row is in staged_jobs again. A worker's claim,
    # which must not be forgotten, flushes the move before it.
    "SET synchronous_commit = off",
    # Each look is at the head of an index, and each write finds its rows by their ids, whatever the statistics
    # say. A partition that has just been truncated looks small enough to be read and sorted whole, and the
    # plan that is made then is kept while it fills up.
    "SET enable_seqscan = off",
    "SET enable_sort = off",
    # Where one of these cannot be avoided, it now looks so dear that it would be compiled first.
    "SET jit = off",
    "SET default_transaction_isolation = 'read committed'",
)
_EXPIRED = "its expires_at had passed before it was drained"


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction did.

    Attributes:
        moved: Rows to be pushed now that their move has committed, the last under `last_delivery`.
        forwarded: How many left for Redis alone.
        expired: How many went to `dead_jobs` because it was too late for them.
        unreadable: How many went to `dead_jobs` because they could not be delivered.
        last_delivery: The highest delivery number so far.
    """

    moved: Sequence[DueJob] = ()
    forwarded: Sequence[Delivery] = ()
    expired: int = 0
    unreadable: int = 0
    last_delivery: int = 0

    @property
    def size(self) -> int:
        """How many rows left `staged_jobs`."""
        return len(self.moved) + len(self.forwarded) + self.expired + self.unreadable


class Enqueuer:
    """Drains on a connection that holds the leader's lock; one at a time, by one thread.

    Args:
        connection: The one that holds the lock, in autocommit mode.
        redis: Where to push.
        state: Where the last leader got to.
        forward_queues: Names of the queues in forward mode.
        batch_size: The most rows of one transaction.
        limit: What an earlier enqueuer of this process has learnt of them; in place of `batch_size`.
        alive: Called between statements, so that a batch that takes long is not taken for a standstill.
    """

    def __init__(
        self,
        connection: Connection,
        redis: Producer,
        state: Progress,
        *,
        forward_queues: frozenset[str] = frozenset(),
        batch_size: int = 2500,
        limit: AdaptiveBatchSize | None = None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        connection.execute("; ".join(SESSION))
        redis.identify(*notes.identity(connection))
        self.connection = connection
        self.redis = redis
        self.last_delivery = state.last_delivery
        self.pushed_up_to = state.pushed_up_to
        # Names of the queues of tracked jobs that are known of so far.
        self.queues: set[str] = set()
        # How many jobs have gone to Redis so far, and how many tracked ones it has refused: those wait in flight.
        self.delivered = 0
        self.refused = 0
        self._forward_queues = forward_queues
        self._limit = limit or AdaptiveBatchSize(batch_size)
        self._alive = alive
        self._recorded = (state.last_delivery, state.pushed_up_to)
        self._pusher = ThreadPoolExecutor(1, thread_name_prefix="push")
        self._pushing: Future[tuple[int, int, int]] | None = None
        # Rows that cannot even be given up, by id: reported once, and passed over from then on.
        self._stuck: list[int] = []
        self._in_hand: Sequence[DueJob] = ()
        # Queues whose forwarded jobs are passed over, and until when.
        self._refused_until: dict[str, float] = {}
        self._urgent, self._patient = ScanCursor(URGENT), ScanCursor(PATIENT)
        self._urgent_until = 0.0
        self._only_urgent = False
        self._looks: dict[ScanCursor, Scan] = {}
        # Where the row may be that spoils batches. Until they get through again, these take no more rows.
        self._suspected: set[ScanCursor] = set()
        # Millions of rows that nobody can see yet are on their way, and looks had better not step over them.
        self.awaits_bulk = False
        self._skip_locked_until = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pusher.shutdown(wait=True)

    def drain(self, keep_on: Callable[[], bool] = lambda: True) -> int:
        """Run batches until nothing is due, or until `keep_on()` is false; returns how many jobs left.

        When this returns, everything that was moved has been pushed.

        Raises:
            UnavailableError: Redis. What was moved and not pushed is redelivered later.
            OwnedByAnotherError: Another database feeds the namespace; likewise.
            psycopg.OperationalError: The database. The batch in hand is rolled back.
        """
        total = 0
        # At least one batch, whatever else is due: otherwise other work could keep this from ever starting.
        while size := self.run_once():
            total += size
            if not keep_on():
                break
        self.flush()
        return total

    def run_once(self) -> int:
        """Take one batch, and leave its push running; returns how many rows left `staged_jobs`.

        Only if nothing is due does it return 0; or if none but patient rows are, while a transaction stages more of
        them by the million.

        Raises:
            UnavailableError: Redis refused the push of the batch before, or a forwarded row of this one.
            psycopg.OperationalError: The database; the batch is rolled back.
        """
        batch = self._take_or_isolate()
        # One push at a time, begun in the order of the numbers: the watermark has no gaps below it.
        self._wait_for_push()
        if batch.moved:
            self._pushing = self._pusher.submit(self._push, batch)
        self.delivered += len(batch.forwarded)
        return batch.size

    @property
    def bound(self) -> Key:
        """The key behind which the next batch begins; what is due before it waits for a sweep."""
        return self._urgent.key

    @property
    def bounds(self) -> list[ScanCursor]:
        """Where looks begin, of each range that they are made at."""
        return [self._urgent] if self.awaits_bulk else [self._urgent, self._patient]

    def flush(self) -> None:
        """Wait until what was moved has been pushed, and write down how far that is.

        Raises:
            UnavailableError: Redis refused the push.
        """
        self._wait_for_push()
        if self._recorded != (self.last_delivery, self.pushed_up_to):
            notes.record_progress(self.connection, self.last_delivery, self.pushed_up_to)
            self._recorded = (self.last_delivery, self.pushed_up_to)
            failpoint(FailurePoint.WATERMARK_MOVED)

    def _push(self, batch: Batch) -> tuple[int, int, int]:
        """Push what a batch has moved; returns its last number, and how many Redis took and refused."""
        first_delivery = batch.last_delivery - len(batch.moved) + 1
        # Encoded slice by slice while Redis takes the slice before: this thread must not hold the
        # interpreter for long while the other one waits for its turn with an answer from PostgreSQL.
        namespace, installation = self.redis.namespace, self.redis.installation
        deliveries = (
            wire.tracked(
                namespace, row.id, row.queue, row.job_name, row.timeout_seconds, number, installation
            )
            for number, row in enumerate(batch.moved, first_delivery)
        )
        failpoint(FailurePoint.COMMITTED)
        with metrics.PUSH_SECONDS.time():
            refused = self.redis.push(deliveries)
        failpoint(FailurePoint.PUSHED)
        queues = Counter(row.queue for row in batch.moved)
        self.queues.update(queues)
        taken = queues - refused
        _count_pushed(taken)
        return batch.last_delivery, taken.total(), refused.total()

    def _wait_for_push(self) -> None:
        if self._pushing is not None:
            pushing, self._pushing = self._pushing, None
            self.pushed_up_to, taken, refused = pushing.result()
            self.delivered += taken
            self.refused += refused

    def _take_or_isolate(self) -> Batch:
        """One batch. If some row spoils it, smaller ones, until that row is out of the way."""
        while True:
            began = monotonic()
            try:
                batch = self._transact()
            except QueuesRefusedError as refusal:
                until = monotonic() + _REFUSED_SECONDS
                self._refused_until.update(dict.fromkeys(refusal.queues, until))
            except (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable):
                if self._skips_locked():
                    raise
                # Somebody else is writing a row of the batch. For a while, pass over what is locked.
                self._skip_locked_until = monotonic() + _SKIP_LOCKED_SECONDS
            except psycopg.Error as error:
                suspects = self._suspects(error)
                if not suspects:
                    raise
                if suspects == 1:
                    self._suspected.clear()
                    return self._give_up(_line(error))
                # Half of the batch, and half of that, finds which row it is, or is not too much.
                self._limit.halve(suspects)
                self._suspected = set(self._looks or self.bounds)
                log.info("a batch of %d rows failed, trying half of it: %s", suspects, _line(error))
            else:
                self._suspected -= self._looks.keys()
                if not self._suspected:
                    self._limit.went_well(monotonic() - began)
                return batch
            self._alive()

    def _suspects(self, error: psycopg.Error) -> int:
        """How many rows the error may be about; 0 if it is about none."""
        if isinstance(error, psycopg.errors.QueryCanceled):
            # All together took longer than a statement may. Even to let scheduled rows mature may do so.
            rows = len(self._in_hand) or self._limit.rows
            return rows if rows > 1 else 0
        return 0 if postgres.fails_for_any_row(error) else len(self._in_hand)

    def _give_up(self, explanation: str) -> Batch:
        (row,) = self._in_hand
        log.error("job %d cannot be moved: %s", row.id, explanation, extra={"event": "unreadable"})
        try:
            buried = staged.bury(self.connection, [row.id], "unreadable", explanation)
            failpoint(FailurePoint.BURIED)
        except psycopg.Error as error:
            if postgres.fails_for_any_row(error):
                raise
            log.error("job %d cannot be given up either, it stays staged: %s", row.id, _line(error))
            self._stuck.append(row.id)
            return Batch(unreadable=1)
        metrics.DEAD.labels("unreadable").inc(buried)
        return Batch(unreadable=1)

    def _skips_locked(self) -> bool:
        return monotonic() < self._skip_locked_until

    def _transact(self) -> Batch:
        self._in_hand, self._looks = (), {}
        skip_locked = self._skips_locked()
        # What one statement of a batch reads, the next one must find unchanged, or fail. Rows that the
        # batch has locked cannot change, and those that it passes over it must see as they are now.
        isolation = IsolationLevel.READ_COMMITTED if skip_locked else IsolationLevel.REPEATABLE_READ
        with metrics.MOVE_SECONDS.time(), postgres.transaction(self.connection, isolation):
            self._looks = looks = self._look(skip_locked=skip_locked)
            self._in_hand = _rows(looks)
            looks, load = self._loaded(looks)
            self._in_hand = rows = _rows(looks)
            batch = self._settle(rows, load) if rows else Batch()
        for bound, look in looks.items():
            bound.passed(look)
        if batch.moved:
            self.last_delivery = batch.last_delivery
            self._recorded = (batch.last_delivery, self.pushed_up_to)
        if batch.size:
            _count(batch)
        return batch

    def _look(self, *, skip_locked: bool) -> dict[ScanCursor, Scan]:
        """Due rows: first the urgent ones, and as many of the others as there is room for."""
        urgent = self._look_from(self._urgent, self._limit.rows, skip_locked=skip_locked)
        looks = {self._urgent: urgent}
        now = monotonic()
        room = self._limit.rows - len(urgent.rows)
        if urgent.rows:
            self._urgent_until = now + _URGENT_SECONDS
            self._only_urgent = not self._only_urgent
        if urgent.rows and self._limit.is_reduced and not self._only_urgent:
            # Each range by itself: a row that spoils batches could otherwise hide behind urgent ones that keep coming.
            looks, room = {}, self._limit.rows
        if now < self._urgent_until:
            room = 0 if urgent.rows and self._only_urgent else min(room, _BESIDE_URGENT)
        self.awaits_bulk = self._patient.steps_over_many() and staged.is_bulk_under_way(self.connection)
        if room and not self.awaits_bulk:
            patient = self._look_from(self._patient, room, skip_locked=skip_locked)
            looks = (looks if patient.rows else {self._urgent: urgent}) | {self._patient: patient}
        return looks or {self._urgent: urgent}

    def _look_from(self, bound: ScanCursor, most: int, *, skip_locked: bool) -> Scan:
        """Due rows of a range: behind the bound, or all of them if a sweep is due, or if there are no others."""
        if not bound.sweep_is_due():
            rows = self._take(bound.key, bound.range.up_to, most, skip_locked=skip_locked)
            if rows:
                return Scan(rows, is_full=len(rows) == most)
        began = monotonic()
        if bound is self._urgent:
            staged.mature(self.connection, self._limit.rows if self._limit.is_reduced else _MATURE_LIMIT)
            self._alive()
            failpoint(FailurePoint.MATURED)
        rows = self._take(bound.range.after, bound.range.up_to, most, skip_locked=skip_locked)
        return Scan(rows, is_full=len(rows) == most, sweep_seconds=monotonic() - began)

    def _take(self, after: Key, up_to: int, most: int, *, skip_locked: bool) -> Sequence[DueJob]:
        return staged.read_due(
            self.connection,
            most,
            after=after,
            up_to=up_to,
            leave=self._stuck,
            leave_queues=self._refused_queues(),
            skip_locked=skip_locked,
        )

    def _refused_queues(self) -> Sequence[str]:
        if not self._refused_until:
            return ()
        now = monotonic()
        self._refused_until = {queue: until for queue, until in self._refused_until.items() if until > now}
        return list(self._refused_until)

    def _loaded(self, looks: dict[ScanCursor, Scan]) -> tuple[dict[ScanCursor, Scan], ForwardBatch]:
        """Encode the forwarded rows of a batch, which ends before the first one that one call cannot carry."""
        rows = _rows(looks)
        ids = [row.id for row in rows if not row.expired and row.queue in self._forward_queues]
        load = forwarding.load(self.connection, self.redis.namespace, ids) if ids else ForwardBatch()
        if load.left is None:
            return looks, load
        return _cut(looks, next(place for place, row in enumerate(rows) if row.id == load.left)), load

    def _settle(self, rows: Sequence[DueJob], load: ForwardBatch) -> Batch:
        """Send each row of the batch its way, within the transaction that took it."""
        failpoint(FailurePoint.TAKEN)
        expired = [row.id for row in rows if row.expired]
        moved = [row for row in rows if not row.expired and row.queue not in self._forward_queues]
        buried = staged.bury(self.connection, expired, "expired", _EXPIRED) if expired else 0
        self._alive()
        last_delivery = self.last_delivery + len(moved)
        if moved:
            staged.move(self.connection, [row.id for row in moved], self.last_delivery)
            notes.record_progress(self.connection, last_delivery, self.pushed_up_to)
        self._alive()
        self._forward(load)
        failpoint(FailurePoint.MOVED)
        return Batch(
            moved=moved,
            forwarded=list(load.deliveries.values()),
            expired=buried,
            unreadable=len(load.unreadable),
            last_delivery=last_delivery,
        )

    def _forward(self, load: ForwardBatch) -> None:
        """Push rows that leave Postgres, and give those up that cannot be pushed."""
        for job_id, explanation in load.unreadable.items():
            staged.bury(self.connection, [job_id], "unreadable", explanation)
        if not load.deliveries:
            return
        # Deleting before pushing, in the one transaction: should a row have changed under us, that
        # fails here, and nothing has been pushed.
        staged.forward(self.connection, list(load.deliveries))
        failpoint(FailurePoint.FORWARDED)
        refused = self.redis.push_together(list(load.deliveries.values()))
        if refused:
            raise QueuesRefusedError(refused)
        failpoint(FailurePoint.PUSHED_FORWARD)


def _rows(looks: dict[ScanCursor, Scan]) -> list[DueJob]:
    return [row for look in looks.values() for row in look.rows]


def _cut(looks: dict[ScanCursor, Scan], most: int) -> dict[ScanCursor, Scan]:
    """The first rows of these looks, as if nobody had looked any further."""
    kept: dict[ScanCursor, Scan] = {}
    for bound, look in looks.items():
        if len(look.rows) > most:
            kept[bound] = replace(look, rows=look.rows[:most], is_full=True)
            break
        kept[bound] = look
        most -= len(look.rows)
    return kept


def _count(batch: Batch) -> None:
    metrics.BATCH_SIZE.observe(batch.size)
    metrics.MOVED.inc(len(batch.moved))
    metrics.DEAD.labels("expired").inc(batch.expired)
    metrics.DEAD.labels("unreadable").inc(batch.unreadable)
    _count_pushed(Counter(delivery.queue for delivery in batch.forwarded))


def _count_pushed(queues: Counter[str]) -> None:
    for queue, count in queues.items():
        metrics.PUSHED.labels(metrics.queue_label(queue)).inc(count)


def _line(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).partition("\n")[0]
