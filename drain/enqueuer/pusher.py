"""Thread that pushes one batch while the leader moves the next."""

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

# Up to this size the leader's own thread pushes: a handover would cost more.
_MOST_AT_ONCE = 20
# Columns of a `DueJob`.
_QUEUE_AND_NAME = itemgetter(1, 2)


@dataclass(frozen=True, slots=True)
class Push:
    """Result of a push, by queue, with list lengths afterwards."""

    up_to: int
    accepted: Counter[str]
    refused: Counter[str]
    lengths: Mapping[str, int]


class Pusher:
    """Pushes batches of tracked jobs; each raises the watermark. Refused jobs stay in `inflight_jobs`."""

    def __init__(self, redis: Producer, deliveries: Deliveries, traces: Traces | None = None) -> None:
        self._traces = traces
        self._redis = redis
        self._deliveries = deliveries
        self.accepted = 0
        self.refused = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="push")
        self._pending: Future[Push] | None = None

    def close(self) -> None:
        """End the thread after the current push."""
        self._thread.shutdown(wait=True)

    def start(self, rows: Sequence[DueJob], up_to: int, thin: Mapping[str, bool]) -> None:
        """Begin to push committed rows, with numbers up to `up_to`; call `wait` before.

        One push at a time, in order: the watermark has no gaps below it.

        Args:
            thin: Queues that get no hashes, and whether workers notify the leader of ends.
        """
        if not is_short(rows):
            self._pending = self._thread.submit(self._push, rows, up_to, thin)
            return
        # `wait` raises, as for the thread.
        self._pending = Future()
        try:
            self._pending.set_result(self._push(rows, up_to, thin))
        except BaseException as error:  # noqa: BLE001
            self._pending.set_exception(error)

    def wait(self) -> Push | None:
        """Wait for any current push; raise the watermark.

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

    def _push(self, rows: Sequence[DueJob], up_to: int, thin: Mapping[str, bool]) -> Push:
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

    def _thin_ids(self, rows: Sequence[DueJob], up_to: int, thin: Mapping[str, bool]) -> dict[str, list[str]]:
        namespace = self._redis.namespace
        ids: dict[str, list[str]] = {queue: [] for queue in thin}
        for number, row in enumerate(rows, up_to - len(rows) + 1):
            if row.queue in thin:
                rq_id = wire.thin_id(namespace, row.id, number, notifies_end=thin[row.queue])
                ids[row.queue].append(rq_id)
        return ids

    def _push_whole(self, rows: Sequence[DueJob], up_to: int, thin: Collection[str]) -> Counter[str]:
        # In slices while Redis runs the previous one, so that the leader's thread never waits long for the GIL.
        namespace, installation = self._redis.namespace, self._redis.installation
        deliveries = (
            wire.tracked(
                namespace, row.id, row.queue, row.job_name, row.timeout_seconds, number, installation
            )
            for number, row in enumerate(rows, up_to - len(rows) + 1)
            if row.queue not in thin
        )
        return self._redis.push(deliveries)


def is_short(rows: Sequence[DueJob]) -> bool:
    """Return True if the leader's own thread pushes these."""
    return len(rows) <= _MOST_AT_ONCE


def count_arrived(rows: Sequence[DueJob]) -> Counter[str]:
    """Count arrived jobs by queue and name; return counts by queue."""
    # All in C: tens of thousands a second.
    arrived = Counter(map(_QUEUE_AND_NAME, rows))
    metrics.count_arrived(arrived)
    queues = Counter[str]()
    for (queue, _), number in arrived.items():
        queues[queue] += number
    return queues


def count_pushed(jobs: Counter[str]) -> None:
    """Count jobs accepted by Redis."""
    for queue, count in jobs.items():
        metrics.PUSHED.labels(metrics.queue_label(queue)).inc(count)
