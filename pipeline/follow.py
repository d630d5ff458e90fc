"""Continuous archive: finished jobs go to the files a few seconds after they finish.

A batch may be written twice: its driver died after the files were there, and before the checkpoint was. So rows that
a driver before this one may have written are looked for in the files first; so are those of closed days, which are
completed and dropped as `pipeline.archive` does. All the others have been seen by nobody, and are simply appended.
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
from pipeline.archive import Archive, Archived, alone
from pipeline.failures import explained

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_EVERY = "2 seconds"
_LOOK_SECONDS = 0.5
_DAY_SECONDS = 86_400
_CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class Batch:
    """Rows of one batch of the stream.

    Attributes:
        rows: How many, those included that the files had already.
        behind: How long ago the last of them finished, in seconds.
    """

    rows: int
    behind: float


@dataclass(frozen=True)
class Plan:
    """Source and destination of a continuous archive.

    Attributes:
        database_url: Where the jobs finish.
        archive: Where they go; see `pipeline.history`.
        checkpoint: A directory of Spark's, where the stream notes how far it has come.
        keep: So many closed days stay in Postgres though they have been archived.
        max_rows: The most rows of a batch; the data source's own by default.
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
        plan: What, and where to.
        session: Makes the Spark session.
        stop: May be set from anywhere, a signal's handler too.
        on_batch: Is told of each batch that has been written.
        on_day: Is told what has become of each closed day.
        report: Is told what is being done.

    Raises:
        DrainError: It cannot go on. Nothing is lost: the next run takes up where this one ended.
    """
    with alone(plan.database_url) as connection, session() as spark:
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

    Spark calls it from a thread of its own, so whatever touches the files takes turns.

    Args:
        plan: What, and where to.
        connection: Holds the lock of whoever archives.
        spark: With the data sources registered.
        on_batch: Is told of each batch that has been written.
        on_day: Is told what has become of each closed day.
        report: Is told what is being done.
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
        self._turn = threading.Lock()
        self._over = False
        self._closed_at = 0.0
        self._told: set[tuple[date, str]] = set()
        # From here on there is nothing that a driver before this one can have written.
        self._unseen = finished.next_transaction(connection)

    def start(self) -> StreamingQuery:
        """Start the stream."""
        source = self._spark.readStream.format("finished_jobs").option(
            "database_url", self._plan.database_url
        )
        if self._plan.max_rows is not None:
            source = source.option("max_rows", str(self._plan.max_rows))
        return (
            source.load()
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", self._plan.checkpoint)
            .trigger(processingTime=_EVERY)
            .start()
        )

    def end(self, query: StreamingQuery) -> None:
        """Stop the stream after the current batch."""
        with self._turn:
            self._over = True
        # Not within the turn: it waits for the stream's thread, which may be waiting for its turn.
        query.stop()

    def close_days_if_due(self) -> None:
        """Close days, once a minute."""
        if monotonic() - self._closed_at >= _CLOSE_SECONDS:
            self.close_days()

    def close_days(self) -> None:
        """Complete, compare and drop the days that are over."""
        with self._turn:
            plan = self._plan
            archive = Archive(
                self._connection, plan.database_url, plan.archive, lambda: self._spark, self._report
            )
            for day in finished.closed_days(self._connection, self._plan.keep):
                # Whoever uses it now will not a minute from now.
                self._tell(archive.close(day, patience=0))
            self._closed_at = monotonic()

    def _tell(self, day: Archived) -> None:
        if day.problem is not None:
            if (day.day, day.problem) in self._told:
                return
            self._told.add((day.day, day.problem))
        self._on_day(day)

    def _take(self, batch: DataFrame, _number: int) -> None:
        with self._turn:
            if self._over:
                # To return would be to say that the rows have been written.
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
        there = files.of_days(rows.sparkSession, self._plan.archive, self._perhaps_written(days))
        files.append(files.without(rows, there), self._plan.archive)
        behind = finished.clock(self._connection) - max(day.latest for day in days) / 1e6
        self._on_batch(Batch(sum(day["rows"] for day in days), behind))

    def _perhaps_written(self, days: Sequence[Any]) -> list[date]:
        today = finished.today(self._connection)
        dated = ((date.fromisoformat(day[history.DATE]), day["first"]) for day in days)
        return [day for day, first in dated if day < today or first < self._unseen]


def _day_of(rows: DataFrame) -> Any:
    from pyspark.sql import functions as f

    # Not date_format(), which asks for the session's time zone.
    days = f.floor(f.unix_seconds(rows["finished_at"]) / _DAY_SECONDS).cast("int")
    return f.date_add(f.lit(date(1970, 1, 1)), days).cast("string")
