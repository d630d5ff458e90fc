"""Conservation: every committed job is in exactly one place, in tables or archive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from drain.errors import DrainError
from drain.pipeline import history
from drain.pipeline.failures import explained
from drain.pipeline.history import Instant
from drain.pipeline.sources import Source
from drain.tables import finished

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REASONS = {
    "lost": "in the list, but in no table or archive",
    "doubled": "in more than one place, or more than once in one",
    "unknown": "in a table or in the archive, but not in the list",
}
SAMPLES = 20


@dataclass(frozen=True)
class Finding:
    """Kind of breach, with its lowest ids."""

    reason: str
    count: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """Result; missing jobs that may have been in days dropped unarchived count as `dropped`."""

    expected: int
    found: dict[str, int]
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if every job is in exactly one place."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {
            "ok": self.ok,
            "expected": self.expected,
            "found": self.found,
            "breaches": [vars(finding) for finding in self.findings],
        }


def check(
    spark: SparkSession,
    database_url: str,
    expected: Source,
    *,
    key: str = "id",
    archive: str | None = None,
    where: str | None = None,
) -> Report:
    """Compare a list of job ids with the tables.

    Newer jobs are left out. A query on the same database is read at the tables' instant; other lists before.

    Args:
        archive: None counts jobs of archived days as lost.
        where: In SQL common to Postgres and Spark.
    """
    with explained(), _listed(spark, database_url, expected, key) as (instant, listed):
        highest = listed.agg({"id": "max"}).first()
        if highest is None or highest[0] is None:
            raise DrainError("the list of expected jobs is empty")
        places = _places(spark, instant, archive, where).where(f"id <= {int(highest[0])}")
        _, dropped_up_to = finished.dropped_up_to(instant.connection)
        return _report(listed, places, dropped_up_to)


@contextmanager
def _listed(
    spark: SparkSession, database_url: str, expected: Source, key: str
) -> Iterator[tuple[Instant, DataFrame]]:
    shared = expected.options.get("database_url") == database_url and not expected.path
    if shared:
        with history.instant(database_url) as instant:
            source = Source(
                format=expected.format, options={**expected.options, "snapshot": instant.snapshot}
            )
            yield instant, _ids(source.load(spark), key)
        return
    listed = _ids(expected.load(spark), key).persist()
    try:
        listed.count()
        with history.instant(database_url) as instant:
            yield instant, listed
    finally:
        listed.unpersist()


def _ids(rows: DataFrame, key: str) -> DataFrame:
    if key not in rows.columns:
        raise DrainError(f"the list has no column {key!r}; it has {', '.join(rows.columns)}")
    return rows.select(rows[key].cast("bigint").alias("id")).where("id IS NOT NULL").distinct()


def _places(spark: SparkSession, instant: Instant, archive: str | None, where: str | None) -> DataFrame:
    tables = {
        name: instant.table(spark, f"{name}_jobs", ["id"], where=where)
        for name in ("staged", "inflight", "dead")
    }
    tables["finished"] = instant.finished(spark, ["id"], archive=archive, where=where)
    return reduce(
        lambda one, other: one.unionByName(other),
        (rows.selectExpr("id", f"'{name}' AS place") for name, rows in tables.items()),
    )


def _report(listed: DataFrame, places: DataFrame, dropped_up_to: int) -> Report:
    from pyspark.sql import functions as f

    by_id = places.groupBy("id").agg(f.count("*").alias("times"), f.min("place").alias("place"))
    joined = listed.withColumn("listed", f.lit(1)).join(by_id, "id", "full_outer")
    reason = (
        f.when(f.col("times").isNull() & (f.col("id") > dropped_up_to), "lost")
        .when(f.col("times") > 1, "doubled")
        .when(f.col("listed").isNull(), "unknown")
    )
    judged = joined.withColumn("reason", reason)
    groups = (
        judged.groupBy("reason", "place")
        .agg(f.count("*").alias("jobs"), f.count("listed").alias("listed"))
        .collect()
    )
    found = dict.fromkeys(("staged", "inflight", "finished", "dead"), 0)
    wrong = dict.fromkeys(REASONS, 0)
    for group in groups:
        if group.place is not None:
            found[group.place] += group.jobs
        elif group.reason is None:
            found["dropped"] = group.jobs
        if group.reason is not None:
            wrong[group.reason] += group.jobs
    return Report(
        expected=sum(group.listed for group in groups),
        found=found,
        # Repeats the join, but only for breaches.
        findings=[Finding(name, count, _lowest(judged, name)) for name, count in wrong.items() if count],
    )


def _lowest(judged: DataFrame, reason: str) -> tuple[int, ...]:
    rows = judged.where(judged["reason"] == reason).select("id").orderBy("id").limit(SAMPLES)
    return tuple(row.id for row in rows.collect())
