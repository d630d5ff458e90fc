"""Backfill: a job is staged for each row of a source, all of them in one commit.

If a process dies before the commit, nothing has been staged, and repeating the command with the same run id stages
everything. After the commit, repeating it stages nothing more.
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

# Number of jobs that a preview shows.
SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Jobs that a backfill stages, and from which rows.

    Attributes:
        source: Source of the rows; each becomes one job.
        job_name: Name of all the jobs.
        args: Columns that become positional arguments, in this order.
        kwargs: Keyword arguments, each with the column that it is taken from.
        queue: Queue of the jobs.
        priority: Priority of the jobs: lower runs first; applications' own jobs have 0.
        tag: Note for people on where the jobs come from.
        where: Condition in Spark's SQL; rows that do not fulfil it are left out.
        run_id: Identifier of the run. A run that has been staged stages nothing more.
        rows_per_second: Number of jobs that come due in each second; None: all at once.
        max_connections: Upper bound of connections that copy rows to Postgres at the same time.
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
        run_id: Identifier of the run.
        jobs: Number of jobs staged under it.
        before: True if an earlier call had staged the jobs, and this one staged nothing.
        seconds: Duration of this call.
    """

    run_id: str
    jobs: int
    before: bool
    seconds: float


def preview(spark: SparkSession, plan: Plan) -> tuple[int, list[tuple[str, str]]]:
    """Count the jobs that a run would stage, and show the arguments of the first ten, as JSON.

    Raises:
        DrainError: The source cannot be read, or lacks a column of the plan.
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
        database_url: Database that the jobs are staged in.
        plan: Jobs to stage.
        session: Makes the Spark session; called only if the run was not staged before.
        report: Receives the progress as a line, twice a second; None: no progress.

    Raises:
        DrainError: Nothing was staged, and the text says why.
        KeyboardInterrupt: SIGINT arrived; either nothing is left of the run, or all of it has been staged.
    """
    began = monotonic()
    with runs.exclusive(database_url, plan.run_id) as connection:
        before = bulk.rows_of(connection, plan.run_id)
        if before is not None:
            return Result(plan.run_id, before, before=True, seconds=monotonic() - began)
        runs.check_stageable(
            connection, [plan.job_name], queue=plan.queue, priority=plan.priority, tag=plan.tag
        )
        try:
            with session() as spark, explained():
                jobs = _jobs(spark, plan)
                with progress.watched(database_url, plan.run_id, jobs, report):
                    _write(jobs, database_url, plan)
        except BaseException:
            with suppress(DrainError):
                bulk.abandon(connection, plan.run_id)
            raise
        staged = bulk.rows_of(connection, plan.run_id)
        # Tasks of an earlier driver that was killed may still be copying; their rows are never staged.
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
    from pipeline.datasources.staging import stage

    given = {"run_id": plan.run_id, "max_connections": str(plan.max_connections)}
    if plan.rows_per_second is not None:
        given["rows_per_second"] = str(plan.rows_per_second)
    stage(jobs, database_url, given)
