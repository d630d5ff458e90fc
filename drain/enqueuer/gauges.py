"""Gauges of the leader, every few seconds."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

from drain import metrics
from drain.database.postgres import Connection
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.extensions import Extensions
from drain.enqueuer.objectives import FlowObjectives
from drain.enqueuer.optional_gauge import OptionalGauge
from drain.enqueuer.pacer import Pacer
from drain.enqueuer.waiting_jobs import WaitingJobs
from drain.enqueuer.waits import Waits
from drain.read import system, table_stats, tags, unfinished_flows
from drain.service.versions import versions
from drain.tables import lanes
from drain.wire import Producer

# Sizes query the file system.
_BYTES_PAUSE_SECONDS = 60.0
_NOT_MEASURED = float("nan")

# Applications may choose many tags.
_ROWS = 10_000
_TAGS = 100

_PAUSE_SECONDS = 5.0
# Exact up to this.
_COUNT_UP_TO = 100_000


class Gauges:
    """A queue seen once keeps its gauges."""

    def __init__(
        self,
        redis: Producer,
        extensions: Extensions | None = None,
        flow_objectives: FlowObjectives | None = None,
    ) -> None:
        self._redis = redis
        self._pacer = Pacer(_PAUSE_SECONDS)
        self._queues: set[str] = set()
        self._stale: int | None = None
        self._waiting_jobs = WaitingJobs()
        self._extensions = extensions
        self._server = ServerGauges()
        self._tags = TagGauges()
        self._flows = FlowGauges(flow_objectives or FlowObjectives())
        metrics.BUILD_INFO.labels(*versions(), "").set(1)

    def run_once(self, enqueuer: Enqueuer, waits: Waits) -> bool:
        """Measure if due; return whether it was."""
        if not self._pacer.is_due():
            return False
        began = monotonic()
        self._count_rows(enqueuer)
        self._measure_queues(enqueuer, waits)
        self._pacer.ran_for(monotonic() - began)
        self._server.run_once(enqueuer.connection)
        self._tags.run_once(enqueuer.connection, self._queues)
        self._flows.run_once(enqueuer.connection)
        return True

    def begin(self, connection: Connection) -> None:
        """Show leader and server."""
        metrics.LEADER.set(1)
        server = connection.info.parameter_status("server_version") or ""
        metrics.BUILD_INFO.clear()
        metrics.BUILD_INFO.labels(*versions(), server.partition(" ")[0]).set(1)

    def clear(self) -> None:
        """Remove or zero the gauges."""
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
        self._flows.clear()
        if self._extensions is not None:
            self._extensions.clear()

    def _count_rows(self, enqueuer: Enqueuer) -> None:
        connection = enqueuer.connection
        metrics.LAG.set(max(lanes.oldest_due_seconds(connection, enqueuer.places).values(), default=0.0))
        if not enqueuer.awaits_bulk:
            metrics.STAGED.set(system.count_staged(connection, _COUNT_UP_TO))
            self._waiting_jobs.run_once(connection, self._queues)
        metrics.KEPT.set(system.count_dead(connection, _COUNT_UP_TO))
        self._count_stale(system.count_stale(connection))

    def _count_stale(self, count: int) -> None:
        # A lower count: the table was emptied.
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


class TagGauges:
    """Waiting jobs by tag; unused tags have no gauge."""

    def __init__(self) -> None:
        self._queues: Collection[str] = ()
        self._gauge = OptionalGauge("drain_tag_waiting_jobs", self._measure)
        self._shown: set[str] = set()

    def run_once(self, connection: Connection, queues: Collection[str]) -> None:
        """Measure if due; `queues` have had jobs."""
        self._queues = queues
        self._gauge.run_once(connection)

    def clear(self) -> None:
        """Remove the gauges."""
        self._shown.clear()
        metrics.TAG_WAITING.clear()
        metrics.TAG_WAIT.clear()

    def _measure(self, connection: Connection) -> None:
        found = tags.count_tags(connection, self._queues, most=_ROWS, tags=_TAGS)
        for tag, number, seconds in found:
            metrics.TAG_WAITING.labels(tag).set(number)
            metrics.TAG_WAIT.labels(tag).set(seconds)
        shown = {tag for tag, _, _ in found}
        for tag in self._shown - shown:
            metrics.TAG_WAITING.remove(tag)
            metrics.TAG_WAIT.remove(tag)
        self._shown = shown


class FlowGauges:
    """Unfinished and late flows, and waits that should have ended."""

    def __init__(self, objectives: FlowObjectives) -> None:
        self._objectives = objectives
        self._gauges = (
            OptionalGauge("drain_flows", self._count),
            OptionalGauge("drain_late_flows", objectives.look),
            OptionalGauge("drain_overdue_wait_seconds", self._measure_overdue),
        )

    def run_once(self, connection: Connection) -> None:
        """Run due measurements."""
        for gauge in self._gauges:
            gauge.run_once(connection)

    def clear(self) -> None:
        """Remove or zero the gauges."""
        self._objectives.forget()
        metrics.FLOWS.clear()
        for gauge in (metrics.FAILING_FLOW, metrics.OVERDUE_WAIT):
            gauge.set(0)

    @staticmethod
    def _count(connection: Connection) -> None:
        found = unfinished_flows.count(connection)
        for state, number in found.states.items():
            metrics.FLOWS.labels(state).set(number)
        metrics.FAILING_FLOW.set(found.failing_seconds)

    @staticmethod
    def _measure_overdue(connection: Connection) -> None:
        metrics.OVERDUE_WAIT.set(unfinished_flows.overdue_seconds(connection))


class ServerGauges:
    """The tables' cost to the server."""

    def __init__(self) -> None:
        self._wal_bytes: float | None = None
        self._gauges = (
            OptionalGauge("drain_table_dead_rows", self._count_rows),
            OptionalGauge("drain_wal_bytes", self._measure_server),
            OptionalGauge("drain_oldest_transaction_seconds", self._measure_oldest_transaction),
            OptionalGauge("drain_table_bytes", self._measure_bytes, _BYTES_PAUSE_SECONDS),
        )

    def run_once(self, connection: Connection) -> None:
        """Run due measurements."""
        for gauge in self._gauges:
            gauge.run_once(connection)

    def clear(self) -> None:
        """Remove the gauges."""
        self._wal_bytes = None
        for gauge in (metrics.DEAD_ROWS, metrics.LIVE_ROWS, metrics.TABLE_BYTES):
            gauge.clear()
        metrics.READY_PARTITIONS.set(0)
        metrics.OLDEST_TRANSACTION.set(_NOT_MEASURED)

    @staticmethod
    def _count_rows(connection: Connection) -> None:
        for table, live, dead in table_stats.count_rows(connection):
            metrics.LIVE_ROWS.labels(table).set(live)
            metrics.DEAD_ROWS.labels(table).set(dead)

    @staticmethod
    def _measure_bytes(connection: Connection) -> None:
        for table, size in table_stats.measure_bytes(connection).items():
            metrics.TABLE_BYTES.labels(table).set(size)

    def _measure_server(self, connection: Connection) -> None:
        server = table_stats.measure_server(connection)
        # A failover changes the server.
        metrics.WAL.inc(max(0.0, server.wal_bytes - (self._wal_bytes or server.wal_bytes)))
        self._wal_bytes = server.wal_bytes
        metrics.READY_PARTITIONS.set(server.ready_partitions)

    @staticmethod
    def _measure_oldest_transaction(connection: Connection) -> None:
        # A role that sees only its own sessions would report no long transaction.
        seen = table_stats.sees_all_transactions(connection)
        seconds = table_stats.oldest_transaction_seconds(connection) if seen else _NOT_MEASURED
        metrics.OLDEST_TRANSACTION.set(seconds)
