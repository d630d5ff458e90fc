"""Reconcile: compare a source of truth with a target, and stage a job per difference in one commit.

A job gets only the key, and must follow the source's state when it *runs*. Then concurrent changes, pending jobs and
repeated runs are harmless.

Keys with a waiting job, staged or in flight, are left out. Claimed jobs do not count, as they may have read the source
too early, nor jobs that may expire. Pushed jobs in forward mode are invisible, and staged again.

Waiting jobs are looked up *after* both sides are read, so they start later and see at least as much. One found before
could run during the reads and hide a change after its run. The worst case is a superfluous job.
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

# Jobs that may expire are not certain to run; corrective jobs have no keyword arguments.
_WILL_RUN = "job_kwargs = '{}'::jsonb AND expires_at IS NULL"
_WAITING = {"staged_jobs": _WILL_RUN, "inflight_jobs": f"{_WILL_RUN} AND lease_expires_at IS NULL"}


# An empty or truncated source usually lacks more keys.
MAX_DELETES = "10%"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sides to compare, and jobs to stage; see `Run`, and the options of `drain reconcile`.

    Attributes:
        columns: The key becomes positional arguments, with the source's types.
        delete_job: None only counts deleted keys.
        report: New directory; one of the same run is replaced.
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
        """Job names by reason."""
        jobs = {MISSING: self.job_name, DIFFERENT: self.job_name}
        return jobs | ({DELETED: self.delete_job} if self.delete_job else {})


@dataclass(frozen=True)
class Result:
    """Result.

    Attributes:
        reasons, changed, skipped: See `Comparison`; empty if an earlier call had staged the jobs.
        staged: Now or before; for `count`, to be staged.
        waiting: Keys left out, as a job waits.
        refused: For `count`, why `run` would stage nothing.
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
    """Compare without staging."""
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
    """Compare and stage; on return all jobs are committed. SIGINT leaves all or none, any other error none."""
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
    report("comparing the two sides")
    # Refuse before the comparison; a repeated run replaces its own report.
    if plan.report and history.exists(spark, plan.report) and not history.exists(spark, _mark(plan)):
        raise ConfigError(f"{plan.report} already exists; --report needs a new path")
    source = with_columns(plan.source.load(spark), plan.source_columns, "--source-column")
    target = with_columns(plan.target.load(spark), plan.target_columns, "--target-column")
    with compared(source, target, plan.columns, skip_null=plan.on_null == "skip") as found:
        if plan.report:
            _write_report(spark, found.differences, plan)
        yield found


def _mark(plan: Plan) -> str:
    """Name this run's mark in a report, which Parquet readers ignore."""
    return f"{plan.report}/_run_{sha256(plan.run_id.encode()).hexdigest()}"


def _write_report(spark: SparkSession, differences: DataFrame, plan: Plan) -> None:
    pairs = zip(key_names(plan.columns), plan.columns.key, strict=True)
    rows = differences.withColumnsRenamed({name: pair.source for name, pair in pairs})
    history.make_empty(spark, str(plan.report), _mark(plan))
    require_shared(spark, _mark(plan))
    rows.write.mode("append").parquet(str(plan.report))


def _correctable(found: Comparison, plan: Plan) -> int:
    return sum(found.counts[reason] for reason in plan.job_for)


def _result(plan: Plan, found: Comparison, staged: int, began: float) -> Result:
    waiting = _correctable(found, plan) - staged
    refused, seconds = _refused(found, plan), monotonic() - began
    counts = found.counts, found.changed, found.skipped
    return Result(plan.run_id, *counts, staged, waiting, refused, seconds)


def _refused(found: Comparison, plan: Plan) -> str | None:
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
    from pyspark.sql import functions as f

    # By element: Postgres and Spark space JSON differently.
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
            return copying.stage(connection, jobs, runs.Run(run_id=plan.run_id), is_divided=False).jobs


@contextmanager
def _exclusive(database_url: str, plan: Plan) -> Iterator[Connection]:
    with runs.exclusive(database_url, plan.run_id) as connection:
        for name in sorted(set(plan.job_for.values())):
            # Concurrent reconciles would stage each other's jobs again.
            if not locks.lock_for_command(connection, locks.RECONCILE, name):
                raise DrainError(
                    f"another reconcile that stages {name} is under way; start this one after it ends"
                )
        yield connection
