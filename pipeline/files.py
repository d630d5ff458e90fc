"""Files of the archive: rows are appended, left out if they are there, and compared with those of Postgres."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import history
from pipeline.datasources import columns
from pipeline.session import temporarily

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = tuple(columns.TABLES["finished_jobs"])

# Settings for writing: times to the microsecond, back to the year 1, which every reader of Parquet can filter by.
_WRITING = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


@dataclass(frozen=True)
class Comparison:
    """Count of rows in Postgres, and of those that are not in the files exactly once and unchanged.

    Attributes:
        rows: Number of rows in Postgres.
        missing: Number of rows that are in no file.
        doubled: Number of rows that are in the files more than once.
        different: Number of rows that are in the files once, with another content.
    """

    rows: int
    missing: int
    doubled: int
    different: int

    @property
    def equal(self) -> bool:
        """True if each row is in the files exactly once, unchanged."""
        return not (self.missing or self.doubled or self.different)


def directory(archive: str, day: date) -> str:
    """Name the directory of a day's files."""
    return f"{archive.rstrip('/')}/{history.DATE}={day}"


def append(rows: DataFrame, archive: str) -> None:
    """Append rows to the archive, by day and queue; they have all columns of `finished_jobs`, and `finished_date`."""
    with temporarily(rows.sparkSession, _WRITING):
        (
            rows.write.mode("append")
            .partitionBy(history.DATE, history.QUEUE)
            .option("compression", "zstd")
            .parquet(archive)
        )


def of_days(spark: SparkSession, archive: str, days: Iterable[date]) -> DataFrame | None:
    """Read the archived rows of these days; None if there are none."""
    wanted = [directory(archive, day) for day in days]
    there = [path for path in wanted if history.exists(spark, path)]
    if not there:
        return None
    return history.read(spark, archive, *there)


def flush(spark: SparkSession, archive: str, day: date) -> None:
    """Flush the files of a day to this machine's disk; does nothing if the archive is elsewhere.

    Spark closes files without fsync, so the operating system may hold them in memory only. A power cut after the day's
    partition was dropped would lose the rows.
    """
    written = history.local(spark, directory(archive, day))
    if written is None or not written.exists():
        return
    for place, _, names in os.walk(written):
        for path in (*(Path(place, name) for name in names), Path(place)):
            _sync(path)
    for parent in written.parents[:2]:
        _sync(parent)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def without(rows: DataFrame, files: DataFrame | None) -> DataFrame:
    """Leave out the rows whose job is in the files."""
    return rows if files is None else rows.join(files.select("id"), "id", "left_anti").select(rows.columns)


def compare(rows: DataFrame, files: DataFrame | None) -> Comparison:
    """Compare rows of Postgres with the files, which may have other rows too."""
    from pyspark.sql import functions as f

    truth = rows.select("id", _checksum(rows).alias("truth"))
    if files is None:
        count = truth.count()
        return Comparison(count, count, 0, 0)
    kept = files.select("id", _checksum(files).alias("kept"))
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

    # The hash skips nulls, and ('a', null) must differ from (null, 'a').
    return f.xxhash64(*[rows[name] for name in COLUMNS], *[rows[name].isNull() for name in COLUMNS])
