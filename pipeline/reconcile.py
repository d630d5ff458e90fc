"""Reconcile: a source of truth is compared with a target, and a job staged for each difference, all in one commit.

A corrective job gets the key alone. It has to bring the target to what the source holds when it *runs*, and the job
for what was deleted has to look whether it still is: then it does no harm that both sides change while they are
compared, that a difference was only under way, or that a job runs twice.

A key is left out for which such a job waits already: same name, same arguments, staged or in flight, due now or later.
A claimed one does not wait. It may have read the source before the change that makes the difference. Neither does one
that may expire. Jobs on queues in forward mode cannot be seen once they were pushed, and are staged again.

What waits is looked up *after* both sides have been read. A job that waits then starts later still, and sees
whatever the comparison saw. Looked up before, it could run while the sides are being read, and a change that comes
after it, and that is what a reconcile is for, would be left out because of a job that is long done. The other
way round the worst is a job too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING

from psycopg.sql import Literal

from drain import wording
from drain.database import locks
from drain.database.postgres import Connection
from drain.errors import ConfigError, DrainError
from drain.tables import bulk
from pipeline import arguments, history, runs
from pipeline.comparison import DELETED, DIFFERENT, MISSING, Columns, Comparison, compared, key_names
from pipeline.failures import explained
from pipeline.sources import Source

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from pipeline.history import Instant

# A job that may expire is no promise to run.
_WILL_RUN = "job_kwargs = '{}'::jsonb AND expires_at IS NULL"
# The tables of jobs that wait, and which of their rows do.
_WAITING = {"staged_jobs": _WILL_RUN, "inflight_jobs": f"{_WILL_RUN} AND lease_expires_at IS NULL"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sides that are compared, and jobs that are staged.

    Attributes:
        source: The truth.
        target: What is to follow it.
        columns: Their keys and versions. The key becomes the jobs' positional arguments, with the source's types.
        job_name: For what is missing or different in the target.
        delete_job: For what was deleted at the source; None: that is only counted.
        queue: Whose workers run them.
        priority: Lower runs first; applications' own jobs have 0.
        tag: Where they were staged, for people.
        report: Where to keep the differences as Parquet; nothing may be there yet but what the same run has left.
        run_id: Tells this run from others. One that has staged its jobs stages no more.
        max_connections: The most that copy rows to Postgres at the same time.
    """

    source: Source
    target: Source
    columns: Columns
    job_name: str
    delete_job: str | None = None
    queue: str = "default"
    priority: int = 100
    tag: str | None = None
    report: str | None = None
    run_id: str = field(default_factory=lambda: runs.new_run_id("reconcile"))
    max_connections: int = 8

    @property
    def corrects(self) -> dict[str, str]:
        """Map each kind of difference to its job, if it has one."""
        jobs = {MISSING: self.job_name, DIFFERENT: self.job_name}
        return jobs | ({DELETED: self.delete_job} if self.delete_job else {})


@dataclass(frozen=True)
class Result:
    """Result of a reconciliation: differences, and jobs staged.

    Attributes:
        run_id: The run.
        reasons: How many keys, by reason; empty if the run had staged its jobs before, and nothing was compared.
        staged: How many jobs were staged, now or before; how many would be, if it was only counted.
        waiting: How many were left out, since one waits already.
        seconds: What it took.
    """

    run_id: str
    reasons: Mapping[str, int]
    staged: int
    waiting: int
    seconds: float


Session = Callable[[], "AbstractContextManager[SparkSession]"]


def count(
    database_url: str, plan: Plan, session: Session, tell: Callable[[str], None] = lambda _step: None
) -> Result:
    """Compare and count; no job is staged.

    Args:
        database_url: Where the jobs would be staged.
        plan: What.
        session: Makes the Spark session.
        tell: Is told each step.

    Raises:
        DrainError: A side cannot be read, or cannot be compared with the other.
    """
    began = monotonic()
    with session() as spark, explained(), _compared(spark, plan, tell) as found:
        due, staged = _due(found, plan), 0
        if due:
            with history.instant(database_url) as now:
                staged = _without_waiting(_jobs(found.differences, plan), now, plan, spark).count()
        return Result(plan.run_id, found.counts, staged, due - staged, monotonic() - began)


def run(
    database_url: str, plan: Plan, session: Session, tell: Callable[[str], None] = lambda _step: None
) -> Result:
    """Compare, and stage the jobs. When it returns, all of them have been committed.

    Args:
        database_url: Where to stage.
        plan: What.
        session: Makes the Spark session.
        tell: Is told each step.

    Raises:
        DrainError: Nothing was staged, and the text says why.
        KeyboardInterrupt: So was it, and by then nothing is left of the run, or all of it was staged.
    """
    began = monotonic()
    with _alone(database_url, plan) as connection:
        before = bulk.rows_of(connection, plan.run_id)
        if before is not None:
            return Result(plan.run_id, {}, before, 0, monotonic() - began)
        names = plan.corrects.values()
        runs.try_one(connection, names, queue=plan.queue, priority=plan.priority, tag=plan.tag)
        try:
            with session() as spark, explained(), _compared(spark, plan, tell) as found:
                due = _due(found, plan)
                if due:
                    tell(f"staging up to {wording.count(due, 'job')}")
                    _stage(spark, found, plan, database_url)
        except BaseException:
            # Spark drops what it knows of; tasks and a driver that were killed may have left more.
            with suppress(DrainError):
                bulk.abandon(connection, plan.run_id)
            raise
        staged = bulk.rows_of(connection, plan.run_id)
        # Tasks of a driver that was killed may still be copying, in vain.
        bulk.abandon(connection, plan.run_id)
    if due and staged is None:
        raise DrainError(f"run {plan.run_id} has ended and was not staged; run it again with --run-id")
    return Result(plan.run_id, found.counts, staged or 0, due - (staged or 0), monotonic() - began)


@contextmanager
def _compared(spark: SparkSession, plan: Plan, tell: Callable[[str], None]) -> Iterator[Comparison]:
    """Compare the two sides, and write the report of the differences."""
    tell("comparing the two sides")
    # Refused now and not when all has been compared; what an attempt of this run has left is written over.
    if plan.report and history.exists(spark, plan.report) and not history.exists(spark, _mark(plan)):
        raise ConfigError(f"there is something at {plan.report} already; --report writes to a new path")
    with compared(plan.source.load(spark), plan.target.load(spark), plan.columns) as found:
        if plan.report:
            _keep_report(spark, found.differences, plan)
        yield found


def _mark(plan: Plan) -> str:
    """Name the empty file that marks a directory as a report of ours; readers of Parquet ignore it."""
    return f"{plan.report}/_run_{sha256(plan.run_id.encode()).hexdigest()}"


def _keep_report(spark: SparkSession, differences: DataFrame, plan: Plan) -> None:
    pairs = zip(key_names(plan.columns), plan.columns.key, strict=True)
    keys = [differences[name].alias(pair.source) for name, pair in pairs]
    rows = differences.select(*keys, "reason", "source_version", "target_version")
    history.make_empty(spark, str(plan.report), _mark(plan))
    rows.write.mode("append").parquet(str(plan.report))


def _due(found: Comparison, plan: Plan) -> int:
    return sum(found.counts[reason] for reason in plan.corrects)


def _jobs(differences: DataFrame, plan: Plan) -> DataFrame:
    from pyspark.sql import functions as f

    name_of = f.create_map(*(f.lit(each) for pair in plan.corrects.items() for each in pair))
    keys = [differences[name] for name in key_names(plan.columns)]
    return differences.where(f.col("reason").isin(*plan.corrects)).select(
        name_of[f.col("reason")].alias("job_name"),
        arguments.positional(keys).alias("job_args"),
        f.lit(plan.queue).alias("queue"),
        f.lit(plan.priority).alias("priority"),
        f.lit(plan.tag).cast("string").alias("tag"),
    )


def _without_waiting(jobs: DataFrame, now: Instant, plan: Plan, spark: SparkSession) -> DataFrame:
    """Leave out the differences for which such a job already waits, in whichever table."""
    from pyspark.sql import functions as f

    # Postgres writes JSON with other spaces, so it is compared by its elements.
    elements = f.from_json("job_args", "array<string>").alias("elements")
    names = ", ".join(Literal(name).as_string() for name in sorted(set(plan.corrects.values())))
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


def _stage(spark: SparkSession, found: Comparison, plan: Plan, database_url: str) -> None:
    with history.instant(database_url) as now:
        _without_waiting(_jobs(found.differences, plan), now, plan, spark).write.format("staged_jobs").option(
            "database_url", database_url
        ).option("run_id", plan.run_id).option("max_connections", str(plan.max_connections)).mode(
            "append"
        ).save()


@contextmanager
def _alone(database_url: str, plan: Plan) -> Iterator[Connection]:
    """Connect, and hold the locks of the run and of its jobs."""
    with runs.alone(database_url, plan.run_id) as connection:
        for name in sorted(set(plan.corrects.values())):
            # Of two at a time, each would stage what the other is just about to.
            if not locks.try_lock(connection, locks.RECONCILE, name):
                raise DrainError(
                    f"another reconcile that stages {name} is under way; start this one when it has ended"
                )
        yield connection
