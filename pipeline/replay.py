"""Replay: past jobs are staged again as new jobs, in one commit.

A new job has the old arguments, queue, priority, tag, key and context. Otherwise it is like one staged today, with the
registration's attempts and timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from drain.errors import ConfigError
from drain.pipeline import history, runs, staging
from drain.pipeline.failures import explained
from drain.pipeline.lake.files import Archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from drain.database.postgres import Connection

SHOWN = 10
# Allowed in conditions, with `finished_date`.
NAMED = (
    *("id", "job_name", "job_args", "job_kwargs", "queue", "priority", "scheduled_at", "tag", "context"),
    *("staged_at", "moved_at", "claimed_at", "finished_at", "finished_by", "attempts", "fencing_token"),
    *("last_error", "history", "key", "superseded_by", "result"),
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Jobs to stage again; see the options of `drain replay`.

    Attributes:
        where: In Spark's SQL, on `NAMED` and `finished_date`.
    """

    run: runs.Run
    archive: str | None
    finished: bool = False
    where: str
    job_name: str
    as_name: str | None = None
    queue: str | None = None
    priority: int | None = None
    tag: str | None = None


@dataclass(frozen=True)
class Preview:
    """Jobs to stage, first and last finish, and arguments as JSON."""

    jobs: int
    queues: dict[str, int]
    first: datetime | None
    last: datetime | None
    shown: list[tuple[str, str]]


def preview(database_url: str, spark: SparkSession, plan: Plan) -> Preview:
    """Count the jobs."""
    from pyspark.sql import functions as f

    with explained(), _past(database_url, spark, plan) as rows:
        ends = (f.min("finished_at").alias("first"), f.max("finished_at").alias("last"))
        jobs = _jobs(rows, plan)
        seconds = [each.cast("double") for each in ends]
        counted = rows.agg(f.count("*").alias("jobs"), *seconds).collect()[0]
        queues = {row.queue: row["count"] for row in jobs.groupBy("queue").count().collect()}
        shown = [(row.job_args, row.job_kwargs) for row in jobs.limit(SHOWN).collect()]
    first, last = (_moment(counted[1]), _moment(counted[2]))
    return Preview(counted.jobs, dict(sorted(queues.items())), first, last, shown)


def run(
    database_url: str,
    plan: Plan,
    session: Callable[[], AbstractContextManager[SparkSession]],
    report: Callable[[str], None] = lambda _line: None,
) -> staging.Result:
    """Stage the jobs again; see `staging.stage`."""

    def check(connection: Connection) -> None:
        runs.check_stageable(
            connection,
            [plan.as_name or plan.job_name],
            queue=plan.queue or "default",
            priority=plan.priority or 0,
            tag=plan.tag,
        )

    @contextmanager
    def jobs_of(spark: SparkSession) -> Iterator[DataFrame]:
        with _past(database_url, spark, plan) as rows:
            yield _jobs(rows, plan)

    return staging.stage(database_url, plan.run, session, jobs_of, check=check, report=report)


@contextmanager
def _past(database_url: str, spark: SparkSession, plan: Plan) -> Iterator[DataFrame]:
    """Read past jobs, each once, without superseded ones, which have not run."""
    if plan.archive is not None and not Archive(plan.archive).exists():
        raise ConfigError(f"there is no archive at {plan.archive}: `drain archive` creates one")
    if plan.finished:
        with history.instant(database_url) as now:
            rows = now.finished(spark, NAMED, archive=plan.archive)
            day = rows["finished_at"].cast("date").cast("string")
            yield _chosen(rows.withColumn(history.DATE, day), plan)
    elif plan.archive is not None:
        yield _chosen(history.read(spark, plan.archive, where=plan.where), plan)
    else:
        raise ConfigError("a replay needs an archive, finished jobs still in Postgres, or both")


def _chosen(rows: DataFrame, plan: Plan) -> DataFrame:
    chosen = rows.where(plan.where)
    return chosen.where((chosen["job_name"] == plan.job_name) & chosen["superseded_by"].isNull())


def _jobs(rows: DataFrame, plan: Plan) -> DataFrame:
    from pyspark.sql import functions as f

    given = {"queue": plan.queue, "priority": plan.priority, "tag": plan.tag}
    changed = [rows[name] if value is None else f.lit(value).alias(name) for name, value in given.items()]
    kept = [rows[name] for name in ("job_args", "job_kwargs", "context", "key")]
    return rows.select(f.lit(plan.as_name or plan.job_name).alias("job_name"), *kept, *changed)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
