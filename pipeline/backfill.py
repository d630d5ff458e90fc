"""Backfill: a job per row of a source, in one commit unless several are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from drain.pipeline import arguments, flows, rejects, runs, staging
from drain.pipeline.failures import explained
from drain.pipeline.rejects import REASON, RECORD, Rejects
from drain.pipeline.runs import Limits
from drain.pipeline.sources import Source
from drain.tables.bulk_flows import NODE, NewFlow

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame, SparkSession

    from drain.database.postgres import Connection

SHOWN = 10
# The first is the default.
ON_NULL = ("fail", "skip", "stage")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Jobs to stage; see `Run`, and the options of `drain backfill`."""

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
    commit_every: int | None = None
    limits: Limits = field(default_factory=Limits)
    on_null: str = ON_NULL[0]
    flow: NewFlow | None = None


@dataclass(frozen=True)
class Preview:
    """Jobs to stage, repeated arguments, and ten arguments as JSON."""

    jobs: int
    duplicates: int
    shown: list[tuple[str, str]]


def preview(spark: SparkSession, plan: Plan, refused: Rejects) -> Preview:
    """Count the jobs."""
    with explained(), rejects.kept(_checked(spark, plan)) as rows:
        refused.take(rows)
        good = rows.where(f"{REASON} IS NULL").select("job_args", "job_kwargs")
        shown = [(row.job_args, row.job_kwargs) for row in good.limit(SHOWN).collect()]
        jobs = good.count()
        if NODE in rows.columns:
            flows.check_graph(rows.where(f"{REASON} IS NULL"))
        return Preview(jobs, jobs - good.distinct().count(), shown)


def run(
    database_url: str,
    plan: Plan,
    session: Callable[[], AbstractContextManager[SparkSession]],
    report: Callable[[str], None] = lambda _line: None,
    *,
    refused: Rejects | None = None,
) -> staging.Result:
    """Stage the jobs; without `refused`, the first unusable row fails the run."""

    def check(connection: Connection) -> None:
        runs.check_stageable(
            connection,
            [plan.job_name],
            queue=plan.queue,
            priority=plan.priority,
            tag=plan.tag,
        )

    return staging.stage(
        database_url,
        runs.Run(
            run_id=plan.run_id,
            rows_per_second=plan.rows_per_second,
            commit_every=plan.commit_every,
            limits=plan.limits,
            priority=plan.priority,
            plan=_description(plan),
            flow=plan.flow,
        ),
        session,
        lambda spark: rejects.separated(_checked(spark, plan), refused or Rejects()),
        check=check,
        is_divided=plan.source.is_divided,
        report=report,
    )


def _description(plan: Plan) -> str:
    given = {
        **plan.source.description(),
        "where": plan.where,
        "job": plan.job_name,
        "args": list(plan.args),
        "kwargs": dict(plan.kwargs),
        "queue": plan.queue,
        "priority": plan.priority,
        "tag": plan.tag,
        "on_null": plan.on_null,
        **({} if plan.flow is None else asdict(plan.flow)),
    }
    return json.dumps({name: value for name, value in given.items() if value not in (None, "", [], {})})


def _checked(spark: SparkSession, plan: Plan) -> DataFrame:
    from pyspark.sql import functions as f

    rows = plan.source.checked(spark)
    rows = rows.where(f.col(REASON).isNotNull() | f.expr(plan.where)) if plan.where else rows
    positional = [arguments.column(rows, name) for name in plan.args]
    named = {name: arguments.column(rows, column) for name, column in plan.kwargs.items()}
    nulls = _nulls(
        dict(zip(plan.args, positional, strict=True))
        | dict(zip(plan.kwargs.values(), named.values(), strict=True))
    )
    if plan.on_null == "skip":
        rows = rows.where(f.col(REASON).isNotNull() | nulls.isNull())
    args, kwargs = arguments.positional(positional), arguments.keyword(named)
    reason = f.coalesce(REASON, nulls) if plan.on_null == "fail" else f.col(REASON)
    graph = flows.graph(rows, plan.flow)
    if plan.flow is not None and plan.flow.node is not None:
        reason = f.coalesce(reason, flows.refusal(graph[NODE], plan.flow.node))
    reason = f.coalesce(reason, arguments.refusal(args, kwargs))
    record = f.when(reason.isNotNull(), f.coalesce(RECORD, arguments.keyword(arguments.by_name(rows))))
    return rows.select(
        f.lit(plan.job_name).alias("job_name"),
        args.alias("job_args"),
        kwargs.alias("job_kwargs"),
        f.lit(plan.queue).alias("queue"),
        f.lit(plan.priority).alias("priority"),
        f.lit(plan.tag).cast("string").alias("tag"),
        *(column.alias(name) for name, column in graph.items()),
        reason.alias(REASON),
        record.alias(RECORD),
    )


def _nulls(columns: Mapping[str, Column]) -> Column:
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("string")
    return f.coalesce(
        nothing,
        *(
            f.when(column.isNull(), f"column {name} is null; give --on-null stage or skip")
            for name, column in columns.items()
        ),
    )
