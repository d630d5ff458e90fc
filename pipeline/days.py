"""Files of one archived day, hidden while written, so that dying changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

from drain.errors import DrainError
from drain.pipeline import files, history
from drain.pipeline.failures import explained
from drain.pipeline.files import COLUMNS, ORDER, Written
from drain.pipeline.lake.files import Archive, File

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
    """

    database_url: str
    snapshot: str
    archive: str
    day: str
    run: str
    size: int
    late: bool


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


def archive(spark: SparkSession, order: Order) -> Answer:
    """Write rows missing from a day's files, or the whole day if these are many or repeat rows."""
    place = Archive(order.archive)
    with explained(), place.explained():
        before = place.files(order.day)
        where = within(date.fromisoformat(order.day))
        rows = history.table(spark, order.database_url, order.snapshot, "finished_jobs", COLUMNS, where=where)
        if before and (order.late or not are_scattered(before)):
            there = history.read_files(spark, place, before, COLUMNS)
            found = compare(rows, there)
            if found.equal:
                return Answer([], whole=False, replaced=[], comparison=found)
            if order.late or not found.doubled:
                lacking = rows.join(there.select("id"), "id", "left_anti").select(*COLUMNS)
                written = write(lacking, order, order.size * found.missing // found.rows)
                found = compare(rows, _read(spark, place, order, written, before))
                return Answer(written, whole=False, replaced=[], comparison=found)
        others = _only_in(spark, place, before, rows)
        kept = others.count() if others else 0
        written = write(rows.unionByName(others) if others and kept else rows, order, order.size)
        found = compare(rows, _read(spark, place, order, written))
        if kept and sum(file.rows for file in written) != found.rows + kept:
            raise DrainError(
                f"of {found.rows + kept:,} rows, {sum(file.rows for file in written):,} were written"
            )
        return Answer(written, whole=True, replaced=[file.path for file in before], comparison=found)


def _read(
    spark: SparkSession, place: Archive, order: Order, written: Sequence[Written], kept: Sequence[File] = ()
) -> DataFrame:
    new = [File(file.path, order.day, 0) for file in written]
    return history.read_files(spark, place, [*kept, *new], COLUMNS)


def _only_in(
    spark: SparkSession, place: Archive, before: Sequence[File], rows: DataFrame
) -> DataFrame | None:
    """Read archived rows that Postgres lacks, as after a restore."""
    if not before:
        return None
    there = history.read_files(spark, place, before, COLUMNS)
    return there.join(rows.select("id"), "id", "left_anti").dropDuplicates(["id"]).select(*COLUMNS)


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
    divided = rows.repartition(1) if tasks == 1 else rows.repartitionByRange(tasks, *ORDER)
    task = partial(_write, order.archive, order.day, order.run)
    written = divided.sortWithinPartitions(*ORDER).mapInArrow(task, "path string, rows bigint").collect()
    return [Written(row["path"], row["rows"]) for row in sorted(written, key=lambda row: str(row["path"]))]


def _write(archive: str, day: str, run: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one task's rows; its files count only if Spark takes the result."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = (context.partitionId(), context.taskAttemptId()) if context else ()
    name = "-".join(map(str, ("order", run, *attempt)))
    place = Archive(archive)
    with place.explained():
        for file in files.write(place, day, name, batches):
            yield pa.RecordBatch.from_pydict({"path": [file.path], "rows": [file.rows]})


def compare(rows: DataFrame, archived: DataFrame) -> Comparison:
    """Compare Postgres' rows with files, which may have more."""
    from pyspark.sql import functions as f

    truth = rows.select("id", _checksum(rows).alias("truth"))
    kept = archived.select("id", _checksum(archived).alias("kept"))
    kept = kept.groupBy("id").agg(f.count("*").alias("copies"), f.min("kept").alias("kept"))
    copies = f.col("copies")
    found = (
        truth.join(kept, "id", "left")
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
    return f.xxhash64(*[rows[name] for name in COLUMNS], *[rows[name].isNull() for name in COLUMNS])
