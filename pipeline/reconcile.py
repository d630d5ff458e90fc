"""Reconcile: a source of truth is compared with a target, and a job staged for each difference, all in one commit.

A corrective job gets the key alone. It has to bring the target to what the source holds when the job *runs*, and the
job for a deleted row has to check that the source still lacks the row. Then three things do no harm: both sides
change while they are compared, a difference is the work of a job under way, or a job runs twice.

A key is left out if such a job waits already: same name, same arguments, staged or in flight, due now or later. A
claimed job does not count as waiting: it may have read the source before the change that makes the difference. A job
that may expire does not count either. Jobs on queues in forward mode are invisible once they were pushed, and are
staged again.

Waiting jobs are looked up *after* both sides have been read. A job that waits then starts later still, and sees at
least what the comparison saw. A job looked up before could run while the sides are being read; a change after that
run, which a reconcile is meant to find, would be left out because of a job that has already run. The worst case of
the lookup afterwards is a superfluous job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING

from psycopg.sql import Literal

from drain import formatting
from drain.database import locks
from drain.database.postgres import Connection
from drain.errors import ConfigError, DrainError
from drain.pipeline import arguments, comparison, copying, history, runs
from drain.pipeline.comparison import DELETED, DIFFERENT, MISSING, Comparison, compared
from drain.pipeline.failures import explained
from drain.pipeline.session import require_shared
from drain.pipeline.sides import Columns, key_names, with_columns
from drain.pipeline.sources import Source
from drain.tables import bulk

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from drain.pipeline.history import Instant

# Condition on jobs that certainly run: a job that may expire does not, and corrective jobs have no keyword arguments.
_WILL_RUN = "job_kwargs = '{}'::jsonb AND expires_at IS NULL"
# Condition on waiting jobs, for each table that holds some.
_WAITING = {"staged_jobs": _WILL_RUN, "inflight_jobs": f"{_WILL_RUN} AND lease_expires_at IS NULL"}


# Most keys that a run deletes by default. A source that is empty or was cut short lacks more of them, as a rule.
MAX_DELETES = "10%"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sides that are compared, and jobs that are staged.

    Attributes:
        source: Source of truth.
        target: Data set that has to follow the source.
        source_columns: Columns to add to the source's, each an expression in Spark's SQL.
        target_columns: Columns to add to the target's.
        columns: Keys and versions of both. The key becomes the jobs' positional arguments, with the source's types.
        job_name: Name of the job for a key that is missing or different in the target.
        delete_job: Name of the job for a key that was deleted at the source; None: such keys are only counted.
        max_deletes: Most keys that a run stages `delete_job` for: a number, or a percentage of the target's keys.
        on_null: What to do about rows with null in a column of the key: `fail`, or `skip` to leave them out.
        queue: Queue of the jobs.
        priority: Priority of the jobs: lower runs first; applications' own jobs have 0.
        tag: Note for people on where the jobs come from.
        report: Path of a new directory for the differences as Parquet; a report of the same run is replaced.
        run_id: Identifier of the run. A run that has staged its jobs stages no more.
    """

    source: Source
    target: Source
    columns: Columns
    source_columns: Mapping[str, str] = field(default_factory=dict)
    target_columns: Mapping[str, str] = field(default_factory=dict)
    job_name: str
    delete_job: str | None = None
    max_deletes: str = MAX_DELETES
    on_null: str = "fail"
    queue: str = "default"
    priority: int = 100
    tag: str | None = None
    report: str | None = None
    run_id: str = field(default_factory=lambda: runs.new_run_id("reconcile"))

    def __post_init__(self) -> None:
        comparison.most_deletes(self.max_deletes, 0)

    @property
    def job_for(self) -> dict[str, str]:
        """Map each reason of a difference to the name of its job; reasons without a job are absent."""
        jobs = {MISSING: self.job_name, DIFFERENT: self.job_name}
        return jobs | ({DELETED: self.delete_job} if self.delete_job else {})


@dataclass(frozen=True)
class Result:
    """Result of a reconciliation: differences, and jobs staged.

    Attributes:
        run_id: Identifier of the run.
        reasons: Number of keys by reason; empty if an earlier call had staged the jobs, and nothing was compared.
        changed: Number of keys by compared column whose values differ; empty as `reasons`.
        skipped: Number of rows without a key that were left out, of `source` and `target`; empty as `reasons`.
        staged: Number of jobs staged, by this call or an earlier one; after `count`, the number that would be staged.
        waiting: Number of keys left out because such a job waits already.
        refused: After `count`, the reason why `run` would stage nothing; None if it would stage.
        seconds: Duration of this call.
    """

    run_id: str
    reasons: Mapping[str, int]
    changed: Mapping[str, int]
    skipped: Mapping[str, int]
    staged: int
    waiting: int
    refused: str | None
    seconds: float


Session = Callable[[], "AbstractContextManager[SparkSession]"]


def count(
    database_url: str, plan: Plan, session: Session, report: Callable[[str], None] = lambda _step: None
) -> Result:
    """Compare and count; no job is staged.

    Args:
        database_url: Database with the job tables.
        plan: Sides to compare, and jobs to count.
        session: Makes the Spark session.
        report: Receives a line at each step.

    Raises:
        DrainError: A side cannot be read, or cannot be compared with the other.
    """
    began = monotonic()
    with session() as spark, explained(), _compared(spark, plan, report) as found:
        staged = 0
        if _correctable(found, plan):
            with history.instant(database_url) as now:
                staged = _without_waiting(_jobs(found.differences, plan), now, plan, spark).count()
        return _result(plan, found, staged, began)


def run(
    database_url: str, plan: Plan, session: Session, report: Callable[[str], None] = lambda _step: None
) -> Result:
    """Compare, and stage the jobs. When it returns, all of them have been committed.

    Args:
        database_url: Database that the jobs are staged in.
        plan: Sides to compare, and jobs to stage.
        session: Makes the Spark session.
        report: Receives a line at each step.

    Raises:
        DrainError: Nothing was staged, and the text says why.
        KeyboardInterrupt: SIGINT arrived; either nothing is left of the run, or all of it has been staged.
    """
    began = monotonic()
    with _exclusive(database_url, plan) as connection:
        noted = bulk.find(connection, plan.run_id)
        if noted is not None and noted.rows:
            return Result(plan.run_id, {}, {}, {}, noted.rows, 0, None, monotonic() - began)
        names = plan.job_for.values()
        runs.check_stageable(connection, names, queue=plan.queue, priority=plan.priority, tag=plan.tag)
        staged = 0
        with (
            runs.begun(connection, runs.Run(run_id=plan.run_id)),
            session() as spark,
            explained(),
            _compared(spark, plan, report) as found,
        ):
            if refused := _refused(found, plan):
                raise DrainError(f"{refused}; nothing was staged")
            due = _correctable(found, plan)
            if due:
                report(f"staging up to {formatting.count(due, 'job')}")
                staged = _stage(spark, found, plan, connection, database_url)
    return _result(plan, found, staged, began)


@contextmanager
def _compared(spark: SparkSession, plan: Plan, report: Callable[[str], None]) -> Iterator[Comparison]:
    """Compare the two sides, and write the report of the differences."""
    report("comparing the two sides")
    # Refused before the comparison and not after it. A report that an earlier attempt of this run has left is replaced.
    if plan.report and history.exists(spark, plan.report) and not history.exists(spark, _mark(plan)):
        raise ConfigError(f"{plan.report} exists already; --report writes to a new path")
    source = with_columns(plan.source.load(spark), plan.source_columns, "--source-column")
    target = with_columns(plan.target.load(spark), plan.target_columns, "--target-column")
    with compared(source, target, plan.columns, skip_null=plan.on_null == "skip") as found:
        if plan.report:
            _write_report(spark, found.differences, plan)
        yield found


def _mark(plan: Plan) -> str:
    """Name the empty file that marks a directory as the report of this run; readers of Parquet ignore it."""
    return f"{plan.report}/_run_{sha256(plan.run_id.encode()).hexdigest()}"


def _write_report(spark: SparkSession, differences: DataFrame, plan: Plan) -> None:
    pairs = zip(key_names(plan.columns), plan.columns.key, strict=True)
    rows = differences.withColumnsRenamed({name: pair.source for name, pair in pairs})
    history.make_empty(spark, str(plan.report), _mark(plan))
    require_shared(spark, _mark(plan))
    rows.write.mode("append").parquet(str(plan.report))


def _correctable(found: Comparison, plan: Plan) -> int:
    """Count the differences that have a job."""
    return sum(found.counts[reason] for reason in plan.job_for)


def _result(plan: Plan, found: Comparison, staged: int, began: float) -> Result:
    waiting = _correctable(found, plan) - staged
    refused, seconds = _refused(found, plan), monotonic() - began
    counts = found.counts, found.changed, found.skipped
    return Result(plan.run_id, *counts, staged, waiting, refused, seconds)


def _refused(found: Comparison, plan: Plan) -> str | None:
    """Say why nothing is staged; None if the jobs are."""
    return comparison.too_many_deletes(found.counts, plan.max_deletes) if plan.delete_job else None


def _jobs(differences: DataFrame, plan: Plan) -> DataFrame:
    from pyspark.sql import functions as f

    name_of = f.create_map(*(f.lit(each) for pair in plan.job_for.items() for each in pair))
    keys = [differences[name] for name in key_names(plan.columns)]
    return differences.where(f.col("reason").isin(*plan.job_for)).select(
        name_of[f.col("reason")].alias("job_name"),
        arguments.positional(keys).alias("job_args"),
        f.lit(plan.queue).alias("queue"),
        f.lit(plan.priority).alias("priority"),
        f.lit(plan.tag).cast("string").alias("tag"),
    )


def _without_waiting(jobs: DataFrame, now: Instant, plan: Plan, spark: SparkSession) -> DataFrame:
    """Leave out the jobs that wait already, in either table."""
    from pyspark.sql import functions as f

    # Element by element: Postgres and Spark put different spaces into JSON.
    elements = f.from_json("job_args", "array<string>").alias("elements")
    names = ", ".join(Literal(name).as_string() for name in sorted(set(plan.job_for.values())))
    tables = [
        now.table(spark, table, ["job_name", "job_args"], where=f"job_name IN ({names}) AND {condition}")
        for table, condition in _WAITING.items()
    ]
    waiting = tables[0].unionByName(tables[1]).select("job_name", elements)
    return (
        jobs.withColumn("elements", elements)
        .join(waiting, ["job_name", "elements"], "left_anti")
        .drop("elements")
    )


def _stage(
    spark: SparkSession, found: Comparison, plan: Plan, connection: Connection, database_url: str
) -> int:
    with history.instant(database_url) as now:
        jobs = _without_waiting(_jobs(found.differences, plan), now, plan, spark)
        with copying.dividing(spark, several=False):
            return copying.stage(connection, jobs, runs.Run(run_id=plan.run_id), is_divided=False)


@contextmanager
def _exclusive(database_url: str, plan: Plan) -> Iterator[Connection]:
    """Connect, and hold the locks of the run and of its jobs."""
    with runs.exclusive(database_url, plan.run_id) as connection:
        for name in sorted(set(plan.job_for.values())):
            # Of two reconciles of a job at a time, each would stage the other's jobs once more.
            if not locks.lock_for_command(connection, locks.RECONCILE, name):
                raise DrainError(
                    f"another reconcile that stages {name} is under way; start this one when it has ended"
                )
        yield connection
