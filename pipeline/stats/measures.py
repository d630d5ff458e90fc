"""Computation of the statistics: finished jobs in one pass of Spark, all others by counts in Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import log
from typing import TYPE_CHECKING

from drain.database.postgres import fetch_one
from drain.tables import finished
from pipeline import history
from pipeline.failures import explained
from pipeline.stats import counts
from pipeline.stats.counts import ALL, Key, Unfinished
from pipeline.stats.question import Question
from pipeline.stats.report import PERCENTILES, Finished, Group, Period, Report, Times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_COLUMNS = (
    *("id", "queue", "job_name", "attempts", "fencing_token", "history"),
    *("staged_at", "scheduled_at", "claimed_at", "finished_at", "superseded_by"),
)
_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Accuracy of a percentile: each bucket is 2 % wider than the one before it, and its middle stands for its values.
_ACCURACY = 0.01
_GROWTH = (1 + _ACCURACY) / (1 - _ACCURACY)

# Waiting and processing time of each job that has run, in microseconds. A waiting time is only known of a job that was
# claimed once, whose token is 1, and was never dead, so it has no history: a dead job that is retried after a week
# would seem to have waited for a week.
_TIMED = """
SELECT id, queue, job_name, attempts, unix_seconds(finished_at) div {period} AS period,
    CASE WHEN fencing_token = 1 AND history IS NULL
        THEN greatest(unix_micros(claimed_at) - unix_micros(greatest(staged_at, scheduled_at)), 0) END AS waited,
    greatest(unix_micros(finished_at) - unix_micros(claimed_at), 0) AS ran
FROM {rows} WHERE superseded_by IS NULL
"""
# Counts by bucket: each job counts in seven groups. The result has at most some hundred buckets for each name and each
# period. A microsecond is added to each time, since 0 has no logarithm.
_COUNTED = """
SELECT queue, job_name, period, waited_bucket, ran_bucket, grouping(waited_bucket) = 0 AS by_waited,
    count(*) AS jobs, count_if(attempts > 1) AS retried, sum(greatest(attempts, 1)) AS attempts,
    max_by(id, ran) AS slowest_id, max(ran) AS ran_max, min(ran) AS ran_min, sum(ran) AS ran_sum,
    max(waited) AS waited_max, min(waited) AS waited_min, sum(waited) AS waited_sum
FROM (
    SELECT *, CAST(ceil(ln(waited + 1D) / {ln_growth}) AS int) AS waited_bucket,
        CAST(ceil(ln(ran + 1D) / {ln_growth}) AS int) AS ran_bucket FROM {timed})
GROUP BY GROUPING SETS ((waited_bucket), (ran_bucket), (period, waited_bucket), (period, ran_bucket),
    (queue, job_name, waited_bucket), (queue, job_name, ran_bucket), (queue, job_name, period))
"""
# Measures of each group. The groups by waiting time hold the same jobs as those by processing time, and count once.
_MEASURED = """
SELECT queue, job_name, period,
    sum(jobs) FILTER (WHERE NOT by_waited) AS finished, sum(retried) FILTER (WHERE NOT by_waited) AS retried,
    sum(attempts) FILTER (WHERE NOT by_waited) AS attempts, max_by(slowest_id, ran_max) AS slowest_id,
    percentile(ran, {shares}, jobs) AS ran_percentiles, sum(jobs) FILTER (WHERE ran IS NOT NULL) AS ran_jobs,
    min(ran_min) AS ran_min, max(ran_max) AS ran_max, sum(ran_sum) FILTER (WHERE NOT by_waited) AS ran_sum,
    percentile(waited, {shares}, jobs) AS waited_percentiles,
    sum(jobs) FILTER (WHERE waited IS NOT NULL) AS waited_jobs,
    min(waited_min) AS waited_min, max(waited_max) AS waited_max,
    sum(waited_sum) FILTER (WHERE NOT by_waited) AS waited_sum
FROM (
    SELECT *, {middle} * pow({growth}, waited_bucket) - 1 AS waited, {middle} * pow({growth}, ran_bucket) - 1 AS ran
    FROM {counted})
GROUP BY queue, job_name, period
"""


def measure(
    spark: SparkSession, database_url: str, question: Question, *, archive: str | None = None
) -> Report:
    """Compute the statistics of all jobs, archived or not, as of one instant.

    Args:
        spark: Session with the data sources registered.
        database_url: Database with the job tables.
        question: Selection of jobs, and length of the periods.
        archive: Path of the archive; without it, only jobs in Postgres count.

    Raises:
        DrainError: A table or the archive cannot be read.
    """
    with history.instant(database_url) as instant, explained():
        (now,) = fetch_one(instant.connection, "SELECT now()")
        unfinished = counts.count(instant.connection, question, now)
        begin = question.begin(now)
        rows = instant.finished(
            spark,
            _COLUMNS,
            archive=archive,
            where=question.condition(now),
            since=begin.date() if begin else None,
        )
        measured = _measured(spark, rows, question.period).collect()
        dropped_before, _ = finished.dropped_up_to(instant.connection)
    return replace(_report(measured, unfinished, question, now), dropped_before=dropped_before)


def _measured(spark: SparkSession, rows: DataFrame, period: timedelta) -> DataFrame:
    timed = spark.sql(_TIMED.format(period=int(period.total_seconds()), rows="{rows}"), rows=rows)
    counted = spark.sql(_COUNTED.format(ln_growth=log(_GROWTH), timed="{timed}"), timed=timed)
    shares = f"array({', '.join(f'{share}D' for share in PERCENTILES.values())})"
    statement = _MEASURED.format(
        shares=shares, growth=f"{_GROWTH!r}D", middle=f"{2 / (_GROWTH + 1)!r}D", counted="{counted}"
    )
    return spark.sql(statement, counted=counted)


def _report(measured: Iterable[Row], unfinished: Unfinished, question: Question, now: datetime) -> Report:
    done = {(row.queue, row.job_name, row.period): _finished(row) for row in measured}
    keys = {ALL, *done, *unfinished.dead, *unfinished.staged, *unfinished.inflight}
    groups = [_group(key, done, unfinished) for key in keys if key[2] is None and key != ALL]
    periods = [_period(key, done, unfinished, question.period) for key in keys if key[2] is not None]
    return Report(
        at=now.astimezone(UTC),
        since=question.begin(now),
        per=question.per,
        total=_group(ALL, done, unfinished),
        jobs=sorted(groups, key=lambda job: (-job.done.finished, -job.died, job.queue, job.job_name)),
        periods=sorted((one for one in periods if one.queue is None), key=lambda one: one.start),
        details=sorted(
            (one for one in periods if one.queue is not None),
            key=lambda one: (one.start, one.queue, one.job_name),
        ),
    )


def _group(key: Key, done: Mapping[Key, Finished], unfinished: Unfinished) -> Group:
    queue, job_name, _ = key
    return Group(
        queue=queue,
        job_name=job_name,
        done=done.get(key, Finished()),
        dead=unfinished.dead.get(key, {}),
        dead_attempts=unfinished.dead_attempts[key],
        staged=unfinished.staged[key],
        inflight=unfinished.inflight[key],
    )


def _period(key: Key, done: Mapping[Key, Finished], unfinished: Unfinished, length: timedelta) -> Period:
    queue, job_name, number = key
    return Period(
        start=_EPOCH + (number or 0) * length,
        queue=queue,
        job_name=job_name,
        done=done.get(key, Finished()),
        dead=unfinished.dead.get(key, {}),
        dead_attempts=unfinished.dead_attempts[key],
    )


def _finished(row: Row) -> Finished:
    return Finished(
        finished=row.finished,
        retried=row.retried,
        attempts=row.attempts,
        waiting=_times(
            row.waited_jobs, row.waited_sum, row.waited_min, row.waited_max, row.waited_percentiles
        ),
        processing=_times(row.ran_jobs, row.ran_sum, row.ran_min, row.ran_max, row.ran_percentiles),
        slowest_id=row.slowest_id,
    )


def _times(
    jobs: int | None, total: int, shortest: int, longest: int, percentiles: Sequence[float] | None
) -> Times | None:
    """Convert times from microseconds to seconds; None without percentiles, as for one period of one name."""
    if not jobs or percentiles is None:
        return None
    # Clamped: the middle of a bucket may lie beyond the only time in it.
    within = (min(max(value, shortest), longest) / _SECOND for value in percentiles)
    return Times(
        jobs,
        total / jobs / _SECOND,
        shortest / _SECOND,
        longest / _SECOND,
        **dict(zip(PERCENTILES, within, strict=True)),
    )
