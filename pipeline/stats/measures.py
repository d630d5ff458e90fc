"""Finished jobs in one pass of Spark, others in Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import log
from typing import TYPE_CHECKING, Any

from drain.database.postgres import fetch_one
from drain.pipeline import history
from drain.pipeline.failures import explained
from drain.pipeline.stats import counts, flows
from drain.pipeline.stats.counts import ALL, Key, Unfinished
from drain.pipeline.stats.question import WEEK, Question
from drain.pipeline.stats.report import PERCENTILES, Ended, Finished, Group, Period, Report, Times, Weeks
from drain.tables import finished
from drain.tables.selections import NO_MARKER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_COLUMNS = (
    *("id", "queue", "job_name", "attempts", "fencing_token", "history"),
    *("staged_at", "scheduled_at", "claimed_at", "finished_at", "superseded_by"),
)
_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Each bucket is 2 % wider than the previous one, and its middle stands for its values.
_ACCURACY = 0.01
_GROWTH = (1 + _ACCURACY) / (1 - _ACCURACY)

# In microseconds. Waiting is known only for jobs claimed once (token 1) and never dead, hence without history: one
# retried from the dead after a week would seem to have waited for a week.
_TIMED = """
SELECT id, queue, job_name, attempts, unix_seconds(finished_at) div {period} AS period,
    least(greatest({now} - unix_micros(finished_at), 0) div {week}, 2) AS week,
    CASE WHEN fencing_token = 1 AND history IS NULL
        THEN greatest(unix_micros(claimed_at) - unix_micros(greatest(staged_at, scheduled_at)), 0) END AS waited,
    greatest(unix_micros(finished_at) - unix_micros(claimed_at), 0) AS ran
FROM {rows} WHERE superseded_by IS NULL AND {no_marker}
"""
# Counts by name, period, week and bucket, with each job twice, and some hundred buckets per name and period. Times get
# a microsecond, since 0 has no logarithm.
_COUNTED = """
SELECT queue, job_name, period, week, waited_bucket, ran_bucket, grouping(waited_bucket) = 0 AS by_waited,
    count(*) AS jobs, count_if(attempts > 1) AS retried, sum(greatest(attempts, 1)) AS attempts,
    max_by(id, ran) AS slowest_id, max(ran) AS ran_max, min(ran) AS ran_min, sum(ran) AS ran_sum,
    max(waited) AS waited_max, min(waited) AS waited_min, sum(waited) AS waited_sum
FROM (
    SELECT *, CAST(ceil(ln(waited + 1D) / {ln_growth}) AS int) AS waited_bucket,
        CAST(ceil(ln(ran + 1D) / {ln_growth}) AS int) AS ran_bucket FROM {timed})
GROUP BY GROUPING SETS ((queue, job_name, period, week, waited_bucket), (queue, job_name, period, week, ran_bucket))
"""
# Sums over names, periods, and both; per week, and per queue in it.
_SUMMED = """
SELECT queue, job_name, period, week, waited_bucket, ran_bucket, by_waited,
    sum(jobs) AS jobs, sum(retried) AS retried, sum(attempts) AS attempts,
    max_by(slowest_id, ran_max) AS slowest_id, max(ran_max) AS ran_max, min(ran_min) AS ran_min,
    sum(ran_sum) AS ran_sum,
    max(waited_max) AS waited_max, min(waited_min) AS waited_min, sum(waited_sum) AS waited_sum
FROM {counted}
GROUP BY GROUPING SETS ((by_waited, waited_bucket, ran_bucket), (period, by_waited, waited_bucket, ran_bucket),
    (queue, job_name, by_waited, waited_bucket, ran_bucket), (queue, job_name, period, by_waited),
    (week, by_waited, waited_bucket, ran_bucket), (queue, week, by_waited, waited_bucket, ran_bucket))
"""
# Groups by waiting time repeat the jobs of those by processing time, and do not count.
_MEASURED = """
SELECT queue, job_name, period, week,
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
    FROM {summed} WHERE week IS NULL OR week < 2)
GROUP BY queue, job_name, period, week
"""


def measure(
    spark: SparkSession, database_url: str, question: Question, *, archive: str | None = None
) -> Report:
    """Compute statistics as of one instant; needs the data sources.

    Without an archive, only jobs in Postgres count.
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
        measured = _measured(spark, rows, question.period, now).collect()
        by_name, nodes = flows.measure(spark, instant, question, now, archive)
        dropped_before, _ = finished.dropped_up_to(instant.connection)
    report = _report(measured, unfinished, question, now)
    return replace(report, flows=by_name, nodes=nodes, dropped_before=dropped_before)


def _measured(spark: SparkSession, rows: DataFrame, period: timedelta, now: datetime) -> DataFrame:
    statement = _TIMED.format(
        period=period // timedelta(seconds=1),
        now=(now - _EPOCH) // timedelta(microseconds=1),
        week=WEEK // timedelta(microseconds=1),
        no_marker=NO_MARKER,
        rows="{rows}",
    )
    timed = spark.sql(statement, rows=rows)
    counted = spark.sql(_COUNTED.format(ln_growth=log(_GROWTH), timed="{timed}"), timed=timed)
    summed = spark.sql(_SUMMED, counted=counted)
    shares = f"array({', '.join(f'{share}D' for share in PERCENTILES.values())})"
    statement = _MEASURED.format(
        shares=shares, growth=f"{_GROWTH!r}D", middle=f"{2 / (_GROWTH + 1)!r}D", summed="{summed}"
    )
    return spark.sql(statement, summed=summed)


def _report(measured: Iterable[Row], unfinished: Unfinished, question: Question, now: datetime) -> Report:
    done = {Key(row.queue, row.job_name, row.period, row.week): _finished(row) for row in measured}
    keys = {ALL, *done, *unfinished.dead, *unfinished.staged, *unfinished.inflight}
    groups = [
        Group(
            **_ended(key, done, unfinished),
            staged=unfinished.staged[key],
            inflight=unfinished.inflight[key],
        )
        for key in keys
        if key.period is None and key.week is None
    ]
    periods = [
        Period(start=_EPOCH + key.period * question.period, **_ended(key, done, unfinished))
        for key in keys
        if key.period is not None
    ]
    queues = {key.queue for key in keys if key.week is not None} | {None}
    weeks = [
        Weeks(*(Ended(**_ended(Key(queue, week=week), done, unfinished)) for week in (0, 1)))
        for queue in queues
    ]
    return Report(
        at=now.astimezone(UTC),
        since=question.begin(now),
        per=question.per,
        total=next(group for group in groups if group.queue is None),
        jobs=sorted(
            (group for group in groups if group.queue is not None),
            key=lambda job: (-job.done.finished, -job.died, job.queue, job.job_name),
        ),
        periods=sorted((one for one in periods if one.queue is None), key=lambda one: one.start),
        details=sorted(
            (one for one in periods if one.queue is not None),
            key=lambda one: (one.start, one.queue, one.job_name),
        ),
        weeks=sorted(weeks, key=lambda one: (one.queue is not None, -one.jobs, one.queue)),
        errors=unfinished.errors,
    )


def _ended(key: Key, done: Mapping[Key, Finished], unfinished: Unfinished) -> dict[str, Any]:
    return {
        "queue": key.queue,
        "job_name": key.job_name,
        "done": done.get(key, Finished()),
        "dead": unfinished.dead.get(key, {}),
        "dead_attempts": unfinished.dead_attempts[key],
    }


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
    """Convert microseconds to seconds; None without percentiles, as for one period of one name."""
    if not jobs or percentiles is None:
        return None
    # A bucket's middle may lie beyond its only time.
    within = (min(max(value, shortest), longest) / _SECOND for value in percentiles)
    return Times(
        jobs,
        total / jobs / _SECOND,
        shortest / _SECOND,
        longest / _SECOND,
        **dict(zip(PERCENTILES, within, strict=True)),
    )
