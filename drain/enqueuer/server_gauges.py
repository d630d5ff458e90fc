"""Gauges of what the tables cost PostgreSQL; the leader measures them every few seconds, and bytes every minute."""

from __future__ import annotations

from drain import metrics
from drain.database.postgres import Connection
from drain.enqueuer.optional_gauge import OptionalGauge
from drain.tables import footprint

# Shortest time between two measurements of the bytes, which ask the file system.
_BYTES_PAUSE_SECONDS = 60.0
_NOT_MEASURED = float("nan")


class ServerGauges:
    """Measures in each term of a process as leader."""

    def __init__(self) -> None:
        self._wal_bytes: float | None = None
        self._gauges = (
            OptionalGauge("drain_table_dead_rows", self._count_rows),
            OptionalGauge("drain_wal_bytes", self._measure_server),
            OptionalGauge("drain_oldest_transaction_seconds", self._measure_oldest_transaction),
            OptionalGauge("drain_table_bytes", self._measure_bytes, _BYTES_PAUSE_SECONDS),
        )

    def run_once(self, connection: Connection) -> None:
        """Measure what is due.

        Raises:
            psycopg.Error: The connection is broken.
        """
        for gauge in self._gauges:
            gauge.run_once(connection)

    def clear(self) -> None:
        """Remove the gauges that only a leader has."""
        self._wal_bytes = None
        for gauge in (metrics.DEAD_ROWS, metrics.LIVE_ROWS, metrics.TABLE_BYTES):
            gauge.clear()
        metrics.READY_PARTITIONS.set(0)
        metrics.OLDEST_TRANSACTION.set(_NOT_MEASURED)

    @staticmethod
    def _count_rows(connection: Connection) -> None:
        for table, live, dead in footprint.count_rows(connection):
            metrics.LIVE_ROWS.labels(table).set(live)
            metrics.DEAD_ROWS.labels(table).set(dead)

    @staticmethod
    def _measure_bytes(connection: Connection) -> None:
        for table, size in footprint.measure_bytes(connection).items():
            metrics.TABLE_BYTES.labels(table).set(size)

    def _measure_server(self, connection: Connection) -> None:
        server = footprint.measure_server(connection)
        # WAL of before this term, and that of another server after a failover, is not counted.
        metrics.WAL.inc(max(0.0, server.wal_bytes - (self._wal_bytes or server.wal_bytes)))
        self._wal_bytes = server.wal_bytes
        metrics.READY_PARTITIONS.set(server.ready_partitions)

    @staticmethod
    def _measure_oldest_transaction(connection: Connection) -> None:
        # A role that sees its own sessions alone would show that all is well.
        seen = footprint.sees_all_transactions(connection)
        seconds = footprint.oldest_transaction_seconds(connection) if seen else _NOT_MEASURED
        metrics.OLDEST_TRANSACTION.set(seconds)
