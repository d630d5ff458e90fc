"""Backfill: a job is staged for each row of a source, all of them in one commit.

Whatever dies on the way, nothing has been staged; the same run id again then stages everything, and once it has been
staged, nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from drain.errors import ConfigError, DrainError
from drain.tables import bulk
from pipeline import arguments, progress, runs
from pipeline.failures import explained
from pipeline.sources import Source

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame, SparkSession

SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Jobs that a backfill stages, and from which rows.

    Attributes:
        source: One job for each of its rows.
        job_name: Of all of them.
        args: Columns that become positional arguments, in this order.
        kwargs: Keyword arguments, and the column that each is taken from.
        queue: Whose workers run them.
        priority: Lower runs first; applications' own jobs have 0.
        tag: Where they were staged, for people.
        where: A condition in Spark's SQL; rows that do not fulfil it are left out.
        run_id: Tells this run from others. One that has been staged stages nothing more.
        rows_per_second: So many of the jobs come due in each second; None: all at once.
        max_connections: The most that copy rows to Postgres at the same time.
    """

    source: Source
    job_name: str
    args: Sequence[str] = ()
    kwargs: Mapping[str, str] = field(default_factory=dict)
    queue: str = "default"
    priority: int = 100
    tag: str | None = None
    where: str | None = None
    run_id: str = field(default_factory=lambda: runs.new_run_id("backfill"))
    rows_per_second: float | None = None
    max_connections: int = 8


@dataclass(frozen=True)
class Result:
    """Result of a backfill.

    Attributes:
        run_id: The run.
        jobs: How many jobs are staged under it.
        before: They had been staged before, and this time nothing was.
        seconds: What it took.
    """

    run_id: str
    jobs: int
    before: bool
    seconds: float


def preview(spark: SparkSession, plan: Plan) -> tuple[int, list[tuple[str, str]]]:
    """Count the jobs that a run would stage, and show the arguments of the first ten, as JSON.

    Raises:
        DrainError: The source cannot be read, or has no such column.
    """
    with explained():
        jobs = _jobs(spark, plan)
        shown = [(row.job_args, row.job_kwargs) for row in jobs.limit(SHOWN).collect()]
        return jobs.count(), shown


def run(
    database_url: str,
    plan: Plan,
    session: Callable[[], AbstractContextManager[SparkSession]],
    report: progress.Reporter | None = None,
) -> Result:
    """Stage the jobs. When it returns, all of them have been committed, now or before.

    Args:
        database_url: Where.
        plan: What.
        session: Makes the Spark session, if there is anything to do.
        report: Is told how it goes on.

    Raises:
        DrainError: Nothing was staged, and the text says why.
        KeyboardInterrupt: So was it, and by then nothing is left of the run, or all of it was staged.
    """
    began = monotonic()
    with runs.alone(database_url, plan.run_id) as connection:
        before = bulk.rows_of(connection, plan.run_id)
        if before is not None:
            return Result(plan.run_id, before, before=True, seconds=monotonic() - began)
        runs.try_one(connection, [plan.job_name], queue=plan.queue, priority=plan.priority, tag=plan.tag)
        try:
            with session() as spark, explained():
                jobs = _jobs(spark, plan)
                with progress.watched(database_url, plan.run_id, jobs, report):
                    _write(jobs, database_url, plan)
        except BaseException:
            # Spark drops what it knows of; tasks and a driver that were killed may have left more.
            with suppress(DrainError):
                bulk.abandon(connection, plan.run_id)
            raise
        staged = bulk.rows_of(connection, plan.run_id)
        # Tasks of a driver that was killed may still be copying, in vain.
        bulk.abandon(connection, plan.run_id)
    if staged is None:
        raise DrainError(f"run {plan.run_id} has ended and was not staged; run it again with --run-id")
    return Result(plan.run_id, staged, before=False, seconds=monotonic() - began)


def _jobs(spark: SparkSession, plan: Plan) -> DataFrame:
    from pyspark.sql import functions as f

    rows = plan.source.load(spark)
    rows = rows.where(plan.where) if plan.where else rows
    positional = [_column(rows, name) for name in plan.args]
    named = {name: _column(rows, column) for name, column in plan.kwargs.items()}
    return rows.select(
        f.lit(plan.job_name).alias("job_name"),
        arguments.positional(positional).alias("job_args"),
        arguments.keyword(named).alias("job_kwargs"),
        f.lit(plan.queue).alias("queue"),
        f.lit(plan.priority).alias("priority"),
        f.lit(plan.tag).cast("string").alias("tag"),
    )


def _column(rows: DataFrame, name: str) -> Column:
    # A field of a struct is spelled author.name.
    if name.partition(".")[0] not in rows.columns:
        raise ConfigError(f"the source has no column {name!r}; it has {', '.join(rows.columns)}")
    return rows[name]


def _write(jobs: DataFrame, database_url: str, plan: Plan) -> None:
    writer = (
        jobs.write.format("staged_jobs")
        .option("database_url", database_url)
        .option("run_id", plan.run_id)
        .option("max_connections", str(plan.max_connections))
    )
    if plan.rows_per_second is not None:
        writer = writer.option("rows_per_second", str(plan.rows_per_second))
    writer.mode("append").save()
