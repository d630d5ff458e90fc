"""Continuous archive: finished jobs go to the files a few seconds after they finish.

A batch may be written twice: its driver died after the files were written, and before the checkpoint was. So rows that
an earlier driver may have written are looked for in the files first; so are rows of closed days, which
`pipeline.archive` may have written. All other rows cannot be in the files yet, and are appended without a look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from time import monotonic
from typing import TYPE_CHECKING, Any

from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.tables import finished
from pipeline import files, history
from pipeline.archive import Archived, Archiver, exclusive
from pipeline.failures import explained

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Interval between two batches, in Spark's words.
_BATCH_INTERVAL = "2 seconds"
# Interval between two checks of whether the stream has ended.
_LOOK_SECONDS = 0.5
_DAY_SECONDS = 86_400
# Interval between two attempts to close days.
_CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Batch:
    """Rows of one batch of the stream.

    Attributes:
        rows: Number of rows, including those that the files had already.
        behind: Seconds since the last of these jobs finished.
    """

    rows: int
    behind: float


@dataclass(frozen=True)
class Plan:
    """Source and destination of a continuous archive.

    Attributes:
        database_url: Database with the job tables.
        archive: Path of the archive; see `pipeline.history`.
        checkpoint: Directory where Spark notes the stream's position.
        keep: Number of closed days that stay in Postgres after they have been archived.
        max_rows: Upper bound of the rows of a batch; None: the data source's default.
    """

    database_url: str
    archive: str
    checkpoint: str
    keep: int = 0
    max_rows: int | None = None


def run(
    plan: Plan,
    session: Callable[[], AbstractContextManager[SparkSession]],
    stop: threading.Event,
    *,
    on_batch: Callable[[Batch], None] = lambda _batch: None,
    on_day: Callable[[Archived], None] = lambda _day: None,
    report: Callable[[str], None] = lambda _step: None,
) -> None:
    """Archive finished jobs until `stop` is set, and then return after the current batch.

    Args:
        plan: Source and destination.
        session: Makes the Spark session.
        stop: Event that ends the archive; any thread and any signal handler may set it.
        on_batch: Called with each batch that has been written.
        on_day: Called with the result for each closed day.
        report: Receives a line at each step.

    Raises:
        DrainError: The stream has failed. Nothing is lost: the next run continues where this one ended.
    """
    with exclusive(plan.database_url) as connection, session() as spark:
        follower = Follower(plan, connection, spark, on_batch, on_day, report)
        follower.close_days()
        report("following finished_jobs until Ctrl-C")
        with explained():
            query = follower.start()
            try:
                while not stop.wait(_LOOK_SECONDS) and query.isActive:
                    follower.close_days_if_due()
            finally:
                follower.end(query)
            failure = None if stop.is_set() else query.exception()
            if failure is not None:
                raise failure


class Follower:
    """Writer of the stream's batches, which closes days between them.

    Spark writes batches from a thread of its own, so a lock keeps batches and the closing of days apart.

    Args:
        plan: Source and destination.
        connection: Connection that holds the archive's lock; see `pipeline.archive.exclusive`.
        spark: Session with the data sources registered.
        on_batch: Called with each batch that has been written.
        on_day: Called with the result for each closed day; once for the same problem of a day.
        report: Receives a line at each step.
    """

    def __init__(
        self,
        plan: Plan,
        connection: Connection,
        spark: SparkSession,
        on_batch: Callable[[Batch], None],
        on_day: Callable[[Archived], None],
        report: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self._plan = plan
        self._report = report
        self._connection = connection
        self._spark = spark
        self._on_batch = on_batch
        self._on_day = on_day
        self._lock = threading.Lock()
        self._is_stopped = False
        self._closed_at = 0.0
        self._reported: set[tuple[date, str]] = set()
        # No earlier driver can have written rows of this transaction or a later one.
        self._first_transaction = finished.next_transaction(connection)

    def start(self) -> StreamingQuery:
        """Start the stream."""
        source = self._spark.readStream.format("finished_jobs").option(
            "database_url", self._plan.database_url
        )
        if self._plan.max_rows is not None:
            source = source.option("max_rows", str(self._plan.max_rows))
        return (
            source.load()
            .writeStream.foreachBatch(self._write_batch)
            .option("checkpointLocation", self._plan.checkpoint)
            .trigger(processingTime=_BATCH_INTERVAL)
            .start()
        )

    def end(self, query: StreamingQuery) -> None:
        """Stop the stream after the current batch."""
        with self._lock:
            self._is_stopped = True
        # Without the lock: stop() waits for the stream's thread, which may be waiting for the lock.
        query.stop()

    def close_days_if_due(self) -> None:
        """Close days, if a minute has passed since the last time."""
        if monotonic() - self._closed_at >= _CLOSE_SECONDS:
            self.close_days()

    def close_days(self) -> None:
        """Complete, compare and drop the days that are over."""
        with self._lock:
            plan = self._plan
            archiver = Archiver(
                self._connection, plan.database_url, plan.archive, lambda: self._spark, self._report
            )
            for day in finished.closed_days(self._connection, self._plan.keep):
                # Without patience: the transactions that use the partition now have ended a minute from now.
                self._report_day(archiver.close(day, patience=0))
            self._closed_at = monotonic()

    def _report_day(self, day: Archived) -> None:
        if day.problem is None:
            # A problem that comes back after a success is a new one.
            self._reported = {(other, problem) for other, problem in self._reported if other != day.day}
        elif (day.day, day.problem) in self._reported:
            return
        else:
            self._reported.add((day.day, day.problem))
        self._on_day(day)

    def _write_batch(self, batch: DataFrame, _number: int) -> None:
        with self._lock:
            if self._is_stopped:
                # Not a return: Spark would note the rows as written.
                raise DrainError("the stream has been stopped")
            rows = batch.withColumn(history.DATE, _day_of(batch)).persist()
            try:
                self._write(rows)
            finally:
                rows.unpersist()

    def _write(self, rows: DataFrame) -> None:
        from pyspark.sql import functions as f

        days = (
            rows.groupBy(history.DATE)
            .agg(
                f.count("*").alias("rows"),
                f.min("finished_xid").alias("first"),
                f.max(f.unix_micros("finished_at")).alias("latest"),
            )
            .collect()
        )
        if not days:
            return
        archived = files.of_days(rows.sparkSession, self._plan.archive, self._perhaps_written(days))
        files.append(files.without(rows, archived), self._plan.archive)
        behind = finished.clock(self._connection) - max(day.latest for day in days) / 1e6
        self._on_batch(Batch(sum(day["rows"] for day in days), behind))

    def _perhaps_written(self, days: Sequence[Any]) -> list[date]:
        """List the days of the batch of which the files may have rows already."""
        today = finished.today(self._connection)
        dated = ((date.fromisoformat(day[history.DATE]), day["first"]) for day in days)
        return [day for day, first in dated if day < today or first < self._first_transaction]


def _day_of(rows: DataFrame) -> Any:
    from pyspark.sql import functions as f

    # Not date_format(), whose result depends on the session's time zone.
    days = f.floor(f.unix_seconds(rows["finished_at"]) / _DAY_SECONDS).cast("int")
    return f.date_add(f.lit(date(1970, 1, 1)), days).cast("string")
