"""Gauges of the leader: lag, depths, waits and counts of tables, measured every few seconds."""

from __future__ import annotations

from time import monotonic

from drain import metrics
from drain.database.postgres import Connection
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.extensions import Extensions
from drain.enqueuer.pacer import Pacer
from drain.enqueuer.server_gauges import ServerGauges
from drain.enqueuer.tag_gauges import TagGauges
from drain.enqueuer.waiting_jobs import WaitingJobs
from drain.enqueuer.waits import Waits
from drain.service.versions import versions
from drain.tables import counts, lanes
from drain.wire import Producer

# Shortest time between two measurements.
_PAUSE_SECONDS = 5.0
# Highest number of rows that is counted exactly.
_COUNT_UP_TO = 100_000


class Gauges:
    """Measures in each term of a process as leader; a queue that it has seen once keeps its gauges.

    Args:
        redis: The producer for the Redis that has the queues.
        extensions: Measure too; None for none.
    """

    def __init__(self, redis: Producer, extensions: Extensions | None = None) -> None:
        self._redis = redis
        self._pacer = Pacer(_PAUSE_SECONDS)
        self._queues: set[str] = set()
        self._stale: int | None = None
        self._waiting_jobs = WaitingJobs()
        self._extensions = extensions
        self._server = ServerGauges()
        self._tags = TagGauges()
        metrics.BUILD_INFO.labels(*versions(), "").set(1)

    def run_once(self, enqueuer: Enqueuer, waits: Waits) -> bool:
        """Measure, unless the last measurement was too recent; returns whether it was time.

        Raises:
            UnavailableError: Redis.
            psycopg.OperationalError: The database.
        """
        if not self._pacer.is_due():
            return False
        began = monotonic()
        self._count_rows(enqueuer)
        self._measure_queues(enqueuer, waits)
        self._pacer.ran_for(monotonic() - began)
        # Each has a pacer of its own.
        self._server.run_once(enqueuer.connection)
        self._tags.run_once(enqueuer.connection, self._queues)
        return True

    def begin(self, connection: Connection) -> None:
        """Show that this process leads, and on which server."""
        metrics.LEADER.set(1)
        server = connection.info.parameter_status("server_version") or ""
        metrics.BUILD_INFO.clear()
        metrics.BUILD_INFO.labels(*versions(), server.partition(" ")[0]).set(1)

    def clear(self) -> None:
        """Remove the gauges that only a leader has; those without labels are 0."""
        for single in (metrics.LEADER, metrics.LAG, metrics.STAGED, metrics.KEPT):
            single.set(0)
        for gauge in (
            metrics.FAILING,
            metrics.WAIT,
            metrics.WAITING,
            metrics.WORKERS,
            metrics.DEPTH,
        ):
            gauge.clear()
        self._server.clear()
        self._tags.clear()
        if self._extensions is not None:
            self._extensions.clear()

    def _count_rows(self, enqueuer: Enqueuer) -> None:
        connection = enqueuer.connection
        metrics.LAG.set(max(lanes.oldest_due_seconds(connection, enqueuer.places).values(), default=0.0))
        if not enqueuer.awaits_bulk:
            metrics.STAGED.set(counts.count_staged(connection, _COUNT_UP_TO))
            self._waiting_jobs.run_once(connection, self._queues)
        metrics.KEPT.set(counts.count_dead(connection, _COUNT_UP_TO))
        self._count_stale(counts.count_stale(connection))

    def _count_stale(self, count: int) -> None:
        # A lower count means that a person has emptied the table.
        metrics.STALE.inc(max(0, count - (count if self._stale is None else self._stale)))
        self._stale = count

    def _measure_queues(self, enqueuer: Enqueuer, waits: Waits) -> None:
        seconds = waits.measure(self._queues)
        self._queues |= {
            queue for queue in {*enqueuer.deliveries.queues, *seconds} if metrics.queue_label(queue) == queue
        }
        for queue, (length, _) in self._redis.lengths(self._queues).items():
            metrics.DEPTH.labels(queue).set(length)
        for queue, workers in self._redis.workers(list(self._queues)).items():
            metrics.WORKERS.labels(queue).set(workers)
        if not waits.refused:
            for label, longest in waits.by_label(seconds, self._queues).items():
                metrics.WAIT.labels(label).set(longest)
        if self._extensions is not None and not enqueuer.awaits_bulk:
            self._extensions.measure(enqueuer.connection, self._queues, self._waiting_jobs.latest)
