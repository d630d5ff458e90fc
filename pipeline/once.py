"""One run of a command that stages the rows of a DataFrame: in one commit, or not at all, and once under its run id.

If a process dies before the commit, nothing has been staged, and repeating the command with the same run id stages
everything. After the commit, repeating it stages nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from drain.errors import DrainError
from drain.tables import bulk
from pipeline import progress, runs
from pipeline.failures import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from drain.database.postgres import Connection


@dataclass(frozen=True)
class Result:
    """Result of a run.

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


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run that stages jobs.

    Attributes:
        run_id: Identifier of the run. A run that has been staged stages nothing more.
        rows_per_second: Number of jobs that come due in each second; None: all at once.
        max_connections: Upper bound of connections that copy rows to Postgres at the same time.
        plan: Description of the jobs. A run that has staged another plan is refused; None: any plan is accepted.
    """

    run_id: str
    rows_per_second: float | None = None
    max_connections: int = 8
    plan: str | None = None


def stage(
    database_url: str,
    run: Run,
    session: Callable[[], AbstractContextManager[SparkSession]],
    jobs_of: Callable[[SparkSession], AbstractContextManager[DataFrame]],
    *,
    check: Callable[[Connection], None],
    report: progress.Reporter | None = None,
) -> Result:
    """Stage the jobs. When it returns, all of them have been committed, now or before.

    Args:
        database_url: Database that the jobs are staged in.
        run: The run.
        session: Makes the Spark session; called only if the run was not staged before.
        jobs_of: Makes a row for each job, with columns of `staged_jobs`.
        check: Raises StageError if such jobs cannot be staged; called before Spark starts.
        report: Receives the progress as a line, twice a second; None: no progress.

    Raises:
        DrainError: Nothing was staged, and the text says why.
        KeyboardInterrupt: SIGINT arrived; either nothing is left of the run, or all of it has been staged.
    """
    began = monotonic()
    with runs.exclusive(database_url, run.run_id) as connection:
        before = bulk.rows_of(connection, run.run_id)
        if before:
            _refuse_another_plan(connection, run)
            return Result(run.run_id, before, before=True, seconds=monotonic() - began)
        check(connection)
        try:
            with (
                session() as spark,
                explained(),
                jobs_of(spark) as jobs,
                progress.watched(database_url, run.run_id, jobs, report),
            ):
                _write(jobs, database_url, run)
        except BaseException:
            with suppress(DrainError):
                bulk.abandon(connection, run.run_id)
            raise
        staged = bulk.rows_of(connection, run.run_id)
        # Tasks of an earlier driver that was killed may still be copying; their rows are never staged.
        bulk.abandon(connection, run.run_id)
    if staged is None:
        raise DrainError(f"run {run.run_id} has ended and was not staged; run it again with --run-id")
    return Result(run.run_id, staged, before=False, seconds=monotonic() - began)


def _refuse_another_plan(connection: Connection, run: Run) -> None:
    noted = bulk.plan_of(connection, run.run_id)
    if None not in (noted, run.plan) and noted != run.plan:
        raise DrainError(
            f"run {run.run_id} has staged another plan: {noted}; this plan needs another --run-id: {run.plan}"
        )


def _write(jobs: DataFrame, database_url: str, run: Run) -> None:
    from pipeline.datasources.staging import stage as write

    given = {"run_id": run.run_id, "max_connections": str(run.max_connections)}
    if run.rows_per_second is not None:
        given["rows_per_second"] = str(run.rows_per_second)
    if run.plan is not None:
        given["plan"] = run.plan
    write(jobs, database_url, given)
