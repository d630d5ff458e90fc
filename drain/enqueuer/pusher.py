"""Background thread that pushes one batch to Redis while the leader's thread moves the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from time import time

from drain import metrics, wire
from drain.enqueuer.deliveries import Deliveries
from drain.failpoints import FailurePoint, failpoint
from drain.tables.staged import DueJob
from drain.wire import Producer, Traces

# Upper bound of a batch that is pushed by the leader's own thread: to hand it over would take longer than what the push
# and the next move could do at the same time.
_MOST_AT_ONCE = 20
# Two columns of a `DueJob`.
_QUEUE_AND_NAME = itemgetter(1, 2)


@dataclass(frozen=True, slots=True)
class Push:
    """Result of the push of one batch.

    Attributes:
        up_to: Highest delivery number of the batch.
        accepted: Jobs that Redis has accepted, by queue.
        refused: Jobs that Redis has refused, by queue.
        lengths: Length of the list of each queue afterwards.
    """

    up_to: int
    accepted: Counter[str]
    refused: Counter[str]
    lengths: Mapping[str, int]


class Pusher:
    """Pushes batches of tracked jobs, one at a time.

    Args:
        redis: The producer that pushes.
        deliveries: Whose watermark rises with each push.
        traces: Gets the time at which each job was pushed.

    Attributes:
        accepted: Jobs that Redis has accepted so far.
        refused: Jobs that Redis has refused so far; they wait in `inflight_jobs`.
    """

    def __init__(self, redis: Producer, deliveries: Deliveries, traces: Traces | None = None) -> None:
        self._traces = traces
        self._redis = redis
        self._deliveries = deliveries
        self.accepted = 0
        self.refused = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="push")
        self._pending: Future[Push] | None = None

    def close(self) -> None:
        """End the thread, after the push that is under way."""
        self._thread.shutdown(wait=True)

    def start(self, rows: Sequence[DueJob], up_to: int, thin: Collection[str] = ()) -> None:
        """Begin to push rows whose move is committed and whose numbers end with `up_to`; call `wait` before.

        One push at a time, begun in the order of the numbers: so the watermark has no gaps below it.

        Args:
            rows: Rows in the order of their numbers.
            up_to: Number of the last one.
            thin: Names of the queues whose jobs are pushed without hashes.
        """
        if len(rows) > _MOST_AT_ONCE:
            self._pending = self._thread.submit(self._push, rows, up_to, thin)
            return
        # As the thread would: `wait` raises what has happened.
        self._pending = Future()
        try:
            self._pending.set_result(self._push(rows, up_to, thin))
        except BaseException as error:  # noqa: BLE001
            self._pending.set_exception(error)

    def wait(self) -> Push | None:
        """Wait for the push that is under way, if there is one, and raise the watermark.

        Raises:
            UnavailableError: Redis refused the push.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            push = pending.result()
            self._deliveries.pushed(push.up_to, [*push.accepted, *push.refused])
            self.accepted += push.accepted.total()
            self.refused += push.refused.total()
            return push
        return None

    def _push(self, rows: Sequence[DueJob], up_to: int, thin: Collection[str]) -> Push:
        failpoint(FailurePoint.COMMITTED)
        with metrics.PUSH_SECONDS.time():
            thin_ids = self._thin_ids(rows, up_to, thin) if thin else {}
            refused = self._redis.push_thin(thin_ids)
            if sum(map(len, thin_ids.values())) < len(rows):
                refused += self._push_whole(rows, up_to, thin)
        failpoint(FailurePoint.PUSHED)
        if self._traces is not None:
            now = time()
            self._traces.note((row.id, {"pushed": now}) for row in rows)
        accepted = count_arrived(rows) - refused
        count_pushed(accepted)
        return Push(up_to, accepted, refused, self._redis.take_pushed_lengths())

    def _thin_ids(self, rows: Sequence[DueJob], up_to: int, thin: Collection[str]) -> dict[str, list[str]]:
        namespace = self._redis.namespace
        ids: dict[str, list[str]] = {queue: [] for queue in thin}
        for number, row in enumerate(rows, up_to - len(rows) + 1):
            if row.queue in thin:
                ids[row.queue].append(wire.thin_id(namespace, row.id, number))
        return ids

    def _push_whole(self, rows: Sequence[DueJob], up_to: int, thin: Collection[str]) -> Counter[str]:
        # Encoded slice by slice while Redis executes the slice before: this thread must not hold the
        # interpreter for long while the leader's thread waits for its turn with an answer from PostgreSQL.
        namespace, installation = self._redis.namespace, self._redis.installation
        deliveries = (
            wire.tracked(
                namespace, row.id, row.queue, row.job_name, row.timeout_seconds, number, installation
            )
            for number, row in enumerate(rows, up_to - len(rows) + 1)
            if row.queue not in thin
        )
        return self._redis.push(deliveries)


def count_arrived(rows: Sequence[DueJob]) -> Counter[str]:
    """Count jobs that have left `staged_jobs`, by queue and name, in the metrics; returns their numbers by queue."""
    # All in C, for there are tens of thousands in a second.
    arrived = Counter(map(_QUEUE_AND_NAME, rows))
    metrics.count_arrived(arrived)
    queues = Counter[str]()
    for (queue, _), number in arrived.items():
        queues[queue] += number
    return queues


def count_pushed(jobs: Counter[str]) -> None:
    """Count jobs that Redis has accepted, by queue, in the metrics."""
    for queue, count in jobs.items():
        metrics.PUSHED.labels(metrics.queue_label(queue)).inc(count)
