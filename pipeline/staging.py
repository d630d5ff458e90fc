"""Runs that stage a DataFrame's rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from drain.errors import DrainError
from drain.pipeline import copying, flows, runs
from drain.pipeline.datasources import options
from drain.pipeline.failures import explained
from drain.pipeline.runs import Run
from drain.pipeline.throttle import Throttle
from drain.tables import bulk
from drain.tables.bulk_flows import NewFlow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from drain.database.postgres import Connection


@dataclass(frozen=True)
class Result:
    """Outcome of a run.

    Attributes:
        jobs: Number of staged jobs.
        before: True if an earlier call had staged them.
        seconds: Duration of this call.
        flow: Id of their flow, if any.
    """

    run_id: str
    jobs: int
    before: bool
    seconds: float
    flow: int | None = None


def stage(
    database_url: str,
    run: Run,
    session: Callable[[], AbstractContextManager[SparkSession]],
    jobs_of: Callable[[SparkSession], AbstractContextManager[DataFrame]],
    *,
    check: Callable[[Connection], None] = lambda _connection: None,
    is_divided: bool = False,
    report: Callable[[str], None] = lambda _line: None,
) -> Result:
    """Stage the jobs; on return all are committed, now or before.

    Args:
        session: Called unless the run was staged before.
        jobs_of: Builds a row per job, with columns of `staged_jobs`.
        check: Raises StageError before Spark starts.

    Raises:
        KeyboardInterrupt: SIGINT; nothing or everything is staged.
    """
    began = monotonic()
    with runs.exclusive(database_url, run.run_id) as connection:
        noted = bulk.find(connection, run.run_id)
        if noted is not None and noted.rows:
            _refuse_another_plan(noted.plan, run)
            if noted.is_complete:
                seconds = monotonic() - began
                return Result(run.run_id, noted.rows, before=True, seconds=seconds, flow=noted.flow)
        check(connection)
        if run.flow is not None:
            runs.check_flow(connection, run.flow)
        throttle = Throttle(connection, run, report)
        with (
            runs.begun(connection, run),
            session() as spark,
            explained(),
            copying.dividing(spark, several=run.commit_every is not None or bool(noted and noted.rows)),
            jobs_of(spark) as jobs,
        ):
            staged = copying.stage(
                connection, jobs, run, is_divided=is_divided, report=report, pause=throttle.pause
            )
    return Result(run.run_id, staged.jobs, before=False, seconds=monotonic() - began, flow=staged.flow)


def stage_rows(
    rows: DataFrame,
    run_id: str,
    *,
    database_url: str | None = None,
    rows_per_second: float | None = None,
    commit_every: int | None = None,
    flow: NewFlow | None = None,
) -> Result:
    """Stage a job for each row of a DataFrame, from any Spark program; only the driver connects to the database.

    Args:
        rows: Columns of `staged_jobs` that applications may give: `job_name`, `job_args` as JSON, …
        run_id: A staged run stages nothing more.
        database_url: Default: DRAIN_DATABASE_URL.
        rows_per_second: Jobs due per second; None for all at once.
        commit_every: Rows per commit; None for one commit.
        flow: From `flows.new_flow`: makes the jobs its members, in one commit. Without rows, it is not staged.

    Raises:
        ConfigError: A column is missing or unknown, or `flow` is given with `commit_every`.
        StageError: A row breaks a rule of `staged_jobs`, or waits for an unknown name or in a cycle; nothing is
            staged after the last commit.
        UnavailableError: The database is unavailable.
    """
    url = options.database_url({} if database_url is None else {"database_url": database_url})
    run = Run(run_id=run_id, rows_per_second=rows_per_second, commit_every=commit_every, flow=flow)
    jobs = flows.members(rows, flow)
    return stage(url, run, lambda: nullcontext(rows.sparkSession), lambda _spark: nullcontext(jobs))


def _refuse_another_plan(noted: str | None, run: Run) -> None:
    if None not in (noted, run.plan) and noted != run.plan:
        raise DrainError(
            f"run {run.run_id} has staged another plan: {noted}; this plan needs another --run-id: {run.plan}"
        )
