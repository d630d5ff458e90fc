"""The enqueuer: drains committed rows of `staged_jobs` in batches, and feeds them to Redis.

A batch is one repeatable-read transaction. The queue of a row decides what becomes of the row:

    tracked    moved to `inflight_jobs`; committed first, then pushed. In the other order a worker could
               look for the row before it is there. Redelivery finds the rows of a crash between the two.
    forward    pushed first, then committed, as in the article that this pattern has its name from. A crash
               between the two pushes the job twice; no job is lost before Redis has it. At most one call
               of Redis in a transaction, so that a refusal leaves nothing in Redis.

The next batch is moved while the last one is being pushed: the server works on the one while this
process works on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Self

from drain.admission.admission import Admission
from drain.database.cursor import TransactionCursor
from drain.database.postgres import Connection
from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.batches import Batches
from drain.enqueuer.deliveries import Deliveries
from drain.enqueuer.due_rows import DueRows
from drain.enqueuer.mover import Mover
from drain.enqueuer.pusher import Pusher
from drain.enqueuer.thin_queues import ThinQueues
from drain.tables import leader_progress
from drain.tables.lanes import Lane
from drain.tables.leader_progress import Progress
from drain.tables.staged import Place
from drain.wire import Producer, Traces

# Settings of the leader's session.
SESSION = (
    # Safe for a move: if the server crashes and forgets it, the row is in staged_jobs again. A worker's claim,
    # which must not be forgotten, flushes the move before it.
    "SET synchronous_commit = off",
    # Each scan is at the head of an index, and each write finds its rows by their ids, whatever the statistics
    # say. A partition that has just been truncated looks small enough to be read and sorted whole, and the
    # plan that is made then is kept while the partition fills up.
    "SET enable_seqscan = off",
    "SET enable_sort = off",
    # A disabled plan node has a huge estimated cost, which would trigger JIT compilation.
    "SET jit = off",
    "SET plan_cache_mode = force_generic_plan",
    "SET default_transaction_isolation = 'read committed'",
    # Arrays are sent as texts, some with NULL in them.
    "SET array_nulls = on",
)


class Enqueuer:
    """Drains on the connection that holds the leader's lock. Only one thread uses it, inside its `with` block.

    Args:
        connection: The one that holds the lock, in autocommit mode.
        redis: The producer that pushes.
        state: Numbers that the last leader has recorded.
        forward_queues: Names of the queues in forward mode.
        batch_size: Upper bound of the rows of one transaction.
        adaptive_batch_size: Used in place of `batch_size`: with what an earlier enqueuer of this process has learnt.
        depth: Bound of each list in Redis; 0 for none, None to let it follow the workers.
        alive: Called between statements, so that a batch that takes long is not mistaken for a standstill.
        traces: Gets the times at which jobs were moved and pushed.
        thin_queues: Chooses the queues whose jobs are pushed without hashes; by default what RQ's registry says.

    Attributes:
        thin_queues: As given.
    """

    # One thing: the order of what a batch does; each step has a class of its own.

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
        self._forwarded = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pusher.close()

    def drain(self, keep_on: Callable[[], bool] = lambda: True, *, looks_again: bool = True) -> int:
        """Run batches until nothing may leave, or until `keep_on()` is false; returns how many rows left `staged_jobs`.

        When this returns, everything that was moved has been pushed.

        Args:
            keep_on: Asked after each batch.
            looks_again: Run a last batch that finds nothing. Otherwise stop after one that has left nothing: whoever
                goes to sleep then runs one more batch anyway.

        Raises:
            UnavailableError: Redis. What was moved and not pushed is redelivered later.
            OwnedByAnotherError: Another database feeds the namespace. What was moved is redelivered later.
            psycopg.OperationalError: The database. The transaction is rolled back.
        """
        total = 0
        # At least one batch, whatever else is due: otherwise other work could keep this from ever starting.
        while True:
            size = self.run_once()
            total += size
            goes_on = looks_again or self.may_leave_some if size else self.admission.may_find_more
            if not goes_on or not keep_on():
                break
        self.flush()
        return total

    def run_once(self) -> int:
        """Move one batch, and leave its push running; returns how many rows left `staged_jobs`.

        It returns 0 only if no row that is due may leave now: there is none, their queues have no room, or only patient
        rows are due while a transaction stages more of them by the million.

        Raises:
            UnavailableError: Redis refused the push of the batch before, or a forwarded row of this one.
            psycopg.OperationalError: The database; the transaction is rolled back.
        """
        self.admission.look_when_due()
        batch = self._batches.run_once()
        self.wait_for_push()
        self._forwarded += len(batch.forwarded)
        if batch.moved:
            self.admission.moved(batch.moved)
            thin = self.thin_queues.choose({row.queue for row in batch.moved})
            self._pusher.start(batch.moved, batch.last_delivery, thin)
            # After the push, which a lone job waits for.
            self.thin_queues.look_when_due()
        return batch.size

    def flush(self) -> None:
        """Wait until everything that was moved has been pushed, and record the watermark.

        Raises:
            UnavailableError: Redis refused the push.
        """
        self.wait_for_push()
        self.deliveries.record_watermark()

    def noticed_lengths(self, queues: Collection[str]) -> None:
        """Note the lengths of the lists of these queues after a push to them that was not this enqueuer's own."""
        lengths = {queue: size for queue, size in self.redis.take_pushed_lengths().items() if queue in queues}
        self.admission.pushed(dict.fromkeys(lengths, 0), lengths)

    def wait_for_push(self) -> None:
        """Wait until everything that was moved has been pushed; the watermark is recorded later.

        Raises:
            UnavailableError: Redis refused the push.
        """
        if push := self._pusher.wait():
            self.admission.pushed(push.accepted + push.refused, push.lengths)

    def look(self) -> bool:
        """Look whether rows that wait for room may have some now, if it is time; returns True if they may.

        Raises:
            UnavailableError: Redis.
        """
        return self.admission.look_when_due()

    @property
    def may_leave_some(self) -> bool:
        """True if the last batch may have left rows that are due, and have room, to the next one."""
        return self._batches.has_left_some or self._due_rows.may_leave_some or self.admission.may_find_more

    @property
    def next_look_at(self) -> float:
        """Time, by `monotonic()`, at which rows that wait for room may have some; infinite if none wait for room."""
        return self.admission.next_look_at

    @property
    def delivered(self) -> int:
        """Number of jobs that this enqueuer has pushed, tracked or forwarded, and Redis has accepted."""
        return self._pusher.accepted + self._forwarded

    @property
    def refused(self) -> int:
        """Number of tracked jobs that Redis has refused; they wait in `inflight_jobs`."""
        return self._pusher.refused

    @property
    def places(self) -> Mapping[Lane, Place]:
        """Each lane that is known to have rows, and the place behind which they wait; others await a sweep."""
        return self._due_rows.places

    @property
    def awaits_bulk(self) -> bool:
        """True if patient rows are left unread while a transaction stages more of them by the million."""
        return self._due_rows.awaits_bulk
