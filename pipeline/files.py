"""The archive's files: rows are appended to them, left out if they are there, and held against those of Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from pipeline import history
from pipeline.datasources import columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = tuple(columns.TABLES["finished_jobs"])

# Times to the microsecond, back to the year 1, that every reader of Parquet knows and can filter by.
_WRITING = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


@dataclass(frozen=True)
class Comparison:
    """Rows of Postgres, and how many of them are not in the files once and as they are.

    Attributes:
        rows: How many Postgres has.
        missing: In no file.
        doubled: In the files more than once.
        different: In the files once, with another content.
    """

    rows: int
    missing: int
    doubled: int
    different: int

    @property
    def equal(self) -> bool:
        """Whether each row is in the files exactly once, as it is."""
        return not (self.missing or self.doubled or self.different)


def directory(archive: str, day: date) -> str:
    """Where the files of a day are."""
    return f"{archive.rstrip('/')}/{history.DATE}={day}"


def append(rows: DataFrame, archive: str) -> None:
    """Append rows, which have all columns and their day, to the archive."""
    with _set(rows.sparkSession, _WRITING):
        (
            rows.write.mode("append")
            .partitionBy(history.DATE, history.QUEUE)
            .option("compression", "zstd")
            .parquet(archive)
        )


def of_days(spark: SparkSession, archive: str, days: Iterable[date]) -> DataFrame | None:
    """What the archive has of these days by now; None if it has nothing of them."""
    wanted = [directory(archive, day) for day in days]
    there = [path for path in wanted if history.exists(spark, path)]
    if not there:
        return None
    schema = f"{columns.spark_schema('finished_jobs', COLUMNS)}, {history.DATE} string"
    return spark.read.schema(schema).option("basePath", archive).parquet(*there)


def without(rows: DataFrame, files: DataFrame | None) -> DataFrame:
    """Those rows whose job is not in the files."""
    return rows if files is None else rows.join(files.select("id"), "id", "left_anti").select(rows.columns)


def compare(rows: DataFrame, files: DataFrame | None) -> Comparison:
    """Hold rows of Postgres against the files, which may have others besides."""
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

    # The hash passes over nulls, and ('a', null) is not (null, 'a').
    return f.xxhash64(*[rows[name] for name in COLUMNS], *[rows[name].isNull() for name in COLUMNS])


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    _apply(spark, settings)
    try:
        yield
    finally:
        _apply(spark, before)


def _apply(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
