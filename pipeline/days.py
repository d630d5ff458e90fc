"""Files of one archived day, hidden while written, so that dying changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

from drain.errors import DrainError
from drain.pipeline import files, history
from drain.pipeline.datasources import columns
from drain.pipeline.failures import explained
from drain.pipeline.files import Written
from drain.pipeline.lake.files import JOBS, Archive, File

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

# Of a task's rows in Postgres; zstd leaves about a tenth.
_TASK_BYTES = 1024 * 1024 * 1024


@dataclass(frozen=True)
class Order:
    """Day to archive.

    Attributes:
        snapshot: Exported, open until the answer.
        day: UTC, such as 2026-11-20.
        run: Letters and digits, unique.
        size: Bytes of its rows in Postgres.
        late: Postgres has only late rows of the day.
        table: Of the jobs, or rows about them.
    """

    database_url: str
    snapshot: str
    archive: str
    day: str
    run: str
    size: int
    late: bool
    table: str = JOBS

    @property
    def where(self) -> str:
        """SQL condition on the day's rows."""
        jobs = within(date.fromisoformat(self.day))
        if self.table == JOBS:
            return jobs
        return f"{columns.KEYS[self.table][0]} IN (SELECT id FROM {JOBS} WHERE {jobs})"


@dataclass(frozen=True)
class Comparison:
    """Rows in Postgres, and files' faults."""

    rows: int
    missing: int
    doubled: int
    different: int

    @property
    def equal(self) -> bool:
        """True if each row is in the files once, unchanged."""
        return not (self.missing or self.doubled or self.different)


@dataclass(frozen=True)
class Answer:
    """Result; if `whole`, new files replace all others of the day."""

    written: list[Written]
    whole: bool
    replaced: list[str]
    comparison: Comparison


def archive(spark: SparkSession, orders: Iterable[Order]) -> list[Answer]:
    """Execute orders."""
    return [_archive(spark, order) for order in orders]


def _archive(spark: SparkSession, order: Order) -> Answer:
    """Write rows missing from a day's files, or the whole day if these are many or repeat rows."""
    place = Archive(order.archive, order.table)
    names, keys = list(columns.TABLES[order.table]), list(columns.KEYS[order.table])
    with explained(), place.explained():
        before = place.files(order.day)
        rows = history.table(spark, order.database_url, order.snapshot, order.table, names, where=order.where)
        if before and (order.late or not are_scattered(before)):
            there = history.read_files(spark, place, before, names)
            found = compare(rows, there, keys)
            if found.equal:
                return Answer([], whole=False, replaced=[], comparison=found)
            # An edge of a finished job can still become idle.
            is_changed = order.table != JOBS and found.different > 0
            if not is_changed and (order.late or not found.doubled):
                lacking = rows.join(there.select(*keys), keys, "left_anti").select(*names)
                written = write(lacking, order, order.size * found.missing // found.rows)
                found = compare(rows, _read(spark, place, order, written, before), keys)
                return Answer(written, whole=False, replaced=[], comparison=found)
        others = _only_in(spark, place, before, rows)
        kept = others.count() if others else 0
        written = write(rows.unionByName(others) if others and kept else rows, order, order.size)
        found = compare(rows, _read(spark, place, order, written), keys)
        if kept and sum(file.rows for file in written) != found.rows + kept:
            raise DrainError(
                f"of {found.rows + kept:,} rows, {sum(file.rows for file in written):,} were written"
            )
        return Answer(written, whole=True, replaced=[file.path for file in before], comparison=found)


def _read(
    spark: SparkSession, place: Archive, order: Order, written: Sequence[Written], kept: Sequence[File] = ()
) -> DataFrame:
    new = [File(file.path, order.day, 0) for file in written]
    return history.read_files(spark, place, [*kept, *new], list(columns.TABLES[order.table]))


def _only_in(
    spark: SparkSession, place: Archive, before: Sequence[File], rows: DataFrame
) -> DataFrame | None:
    """Read archived rows that Postgres lacks, as after a restore."""
    if not before:
        return None
    names, keys = list(columns.TABLES[place.table]), list(columns.KEYS[place.table])
    there = history.read_files(spark, place, before, names)
    return there.join(rows.select(*keys), keys, "left_anti").dropDuplicates(keys).select(*names)


def within(day: date) -> str:
    """Return the SQL condition on a day."""
    return f"finished_at >= '{day} 00:00:00+00' AND finished_at < '{day + timedelta(days=1)} 00:00:00+00'"


def are_scattered(given: Sequence[File]) -> bool:
    """Return True if fewer files would do, not counting those of one close."""
    if any(file.span for file in given):
        return True
    generations = [file.generation for file in given if file.generation]
    whole = max((each for each in generations if each[1] == "whole"), default=None)
    rest = [file for file in given if file.generation is None or file.generation != whole]
    return len(rest) > max(1.0, sum(file.size for file in rest) / (files.FILE_BYTES / 2))


def write(rows: DataFrame, order: Order, size: int) -> list[Written]:
    """Write a day's rows, of `size` bytes in Postgres, to hidden files in order."""
    tasks = 1 + size // _TASK_BYTES
    by = files.ORDERS[order.table]
    divided = rows.repartition(1) if tasks == 1 else rows.repartitionByRange(tasks, *by)
    task = partial(_write, order.archive, order.table, order.day, order.run)
    written = divided.sortWithinPartitions(*by).mapInArrow(task, "path string, rows bigint").collect()
    return [Written(row["path"], row["rows"]) for row in sorted(written, key=lambda row: str(row["path"]))]


def _write(
    archive: str, table: str, day: str, run: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write one task's rows; its files count only if Spark takes the result."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = (context.partitionId(), context.taskAttemptId()) if context else ()
    name = "-".join(map(str, ("order", run, *attempt)))
    place = Archive(archive, table)
    with place.explained():
        for file in files.write(place, day, name, batches):
            yield pa.RecordBatch.from_pydict({"path": [file.path], "rows": [file.rows]})


def compare(rows: DataFrame, archived: DataFrame, keys: Sequence[str] = ("id",)) -> Comparison:
    """Compare Postgres' rows with files, which may have more."""
    from pyspark.sql import functions as f

    truth = rows.select(*keys, _checksum(rows).alias("truth"))
    kept = archived.select(*keys, _checksum(archived).alias("kept"))
    kept = kept.groupBy(*keys).agg(f.count("*").alias("copies"), f.min("kept").alias("kept"))
    copies = f.col("copies")
    found = (
        truth.join(kept, list(keys), "left")
        .agg(
            f.count("*").alias("rows"),
            f.count_if(copies.isNull()).alias("missing"),
            f.count_if(copies > 1).alias("doubled"),
            f.count_if((copies == 1) & (f.col("truth") != f.col("kept"))).alias("different"),
        )
        .collect()
    )
    return Comparison(**found[0].asDict())


def _checksum(rows: DataFrame) -> Column:
    from pyspark.sql import functions as f

    # Hashes skip nulls, but ('a', null) must differ from (null, 'a').
    names = sorted(rows.columns)
    return f.xxhash64(*[rows[name] for name in names], *[rows[name].isNull() for name in names])
