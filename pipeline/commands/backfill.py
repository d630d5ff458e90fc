"""`drain backfill`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from drain import formatting
from drain.errors import StageError
from drain.formatting import visible
from drain.jobs.dependencies import OnFailure
from drain.pipeline import backfill as work, datasources, runs, sources
from drain.pipeline.commands.options import Runtime, pairs, spark_options
from drain.pipeline.flows import new_flow
from drain.pipeline.rejects import Rejects
from drain.pipeline.runs import Limits
from drain.pipeline.session import SMALL
from drain.terminal import progress
from drain.terminal.commandline import FiniteRange, as_json_option, settings_options

if TYPE_CHECKING:
    from drain.config import Settings
    from drain.tables.bulk_flows import NewFlow

_CALLBACK = "'JOB [ARGS]'"
_CALLBACKS = {"on_success", "on_complete", "on_dead"}
_OF_FLOW = ("description", *_CALLBACKS, "node", "after", "on_failure")


@click.command(short_help="Stage a job for each row of a table, file or query.")
@click.argument("source")
@settings_options("database_url")
@click.option("--job", "job_name", required=True, help="Job name: shop.jobs.index_order.")
@click.option(
    "--args", "args", metavar="COLUMNS", default="", help="Columns for positional arguments: id,version."
)
@click.option(
    "--kwargs",
    "kwargs",
    metavar="NAME=COLUMN,…",
    default="",
    help="Columns for keyword arguments: user=author.",
)
@click.option(
    "--columns",
    metavar="NAME TYPE,…",
    default="",
    help="Column types of CSV and JSON: id bigint, zip text.",
)
@click.option(
    "--on-null",
    type=click.Choice(work.ON_NULL),
    default=work.ON_NULL[0],
    show_default=True,
    help="Action for rows with a null argument.",
)
@click.option("--queue", default="default", show_default=True, help="Queue of the jobs.")
@click.option(
    "--priority",
    type=click.IntRange(-(2**31), 2**31 - 1),
    default=100,
    show_default=True,
    help="Priority; lower runs first. Applications use 0.",
)
@click.option("--tag", help="Tag of the jobs.")
@click.option("--where", help="Spark SQL condition on the rows.")
@click.option("--flow", metavar="NAME", help="Name of a flow that all jobs are members of.")
@click.option("--description", metavar="TEXT", help="With --flow: text for operators.")
@click.option("--on-success", metavar=_CALLBACK, help="With --flow: job after all have finished.")
@click.option("--on-complete", metavar=_CALLBACK, help="With --flow: job after all have finished or died.")
@click.option("--on-dead", metavar=_CALLBACK, help="With --flow: job after the first has died.")
@click.option("--node", metavar="COLUMN", help="With --flow: column of the nodes' names.")
@click.option("--after", metavar="COLUMN", help="With --node: column of the names that a node waits for.")
@click.option(
    "--on-failure",
    type=click.Choice(get_args(OnFailure)),
    help="With --after: effect of a predecessor's death; cancel by default.",
)
@click.option("--run-id", help="Id of the run; generated and printed by default.")
@click.option(
    "--max-rows-per-second",
    "rows_per_second",
    type=FiniteRange(min=0, min_open=True),
    help="Jobs that come due per second, from the commit.",
)
@click.option(
    "--commit-every",
    type=click.IntRange(min=1),
    metavar="ROWS",
    help="Rows per commit; one commit by default.",
)
@click.option(
    "--max-lag",
    type=FiniteRange(min=0, min_open=True),
    metavar="SECONDS",
    default=Limits.lag_seconds,
    show_default=True,
    help="With --commit-every: replica lag that pauses the run.",
)
@click.option(
    "--max-wal",
    type=FiniteRange(min=0, min_open=True),
    metavar="MB",
    default=Limits.wal_bytes / 2**20,
    show_default=True,
    help="With --commit-every: WAL kept by replication slots that pauses the run.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the source format; repeatable.",
)
@click.option(
    "--register",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Python data source to register; repeatable.",
)
@click.option(
    "--reject",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="JSON Lines file for rows that cannot be staged.",
)
@click.option(
    "--max-rejects",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Maximum number of rejected rows.",
)
@click.option("--dry-run", is_flag=True, help="Count the jobs and show ten without staging them.")
@spark_options
@as_json_option
def backfill(
    settings: Settings,
    runtime: Runtime,
    *,
    source: str,
    args: str,
    kwargs: str,
    columns: str,
    options: tuple[str, ...],
    register: tuple[str, ...],
    reject: Path | None,
    max_rejects: int,
    max_lag: float,
    max_wal: float,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Stage a job for each row of SOURCE, all in one commit.

    SOURCE is a path or s3:// URL ending in .parquet, .csv, .json, .jsonl or .orc; a directory of such files;
    FORMAT:PATH for other Spark formats; or 'sql:SELECT …' on PostgreSQL.

    Repeating a run with the same --run-id never stages a row twice. Use --commit-every for runs so large that one
    transaction would hold back vacuum for hours; the run pauses while replicas or more urgent jobs fall behind. Redis
    lists are first in, first out: give a large run its own queue, and list it last when you start workers.

    \b
    drain backfill documents.parquet --job shop.index --args id --dry-run \\
        --where "author = 'ann'"
    drain backfill 'sql:SELECT id, author FROM documents' --job shop.index \\
        --args id --kwargs user=author --queue bulk
    drain backfill s3://lake/documents --job shop.index --args id \\
        --flow reindex --on-success 'shop.publish ["documents"]'
    """  # noqa: D301
    given["flow"] = _flow(given)
    if given["run_id"] is None:
        given["run_id"] = runs.new_run_id("backfill")
    if given["where"] is not None and not given["where"].strip():
        raise click.UsageError("--where is empty; leave it out for all rows")
    if max_rejects and reject is None:
        raise click.UsageError("--max-rejects needs --reject, the file that the rejects are written to")
    refused = Rejects(reject, max_rejects)
    of_source = pairs(options, "--option")
    if sources.holds_password(of_source):
        click.echo(
            f"other users of this machine can see the password in --option database_url: "
            f"set {sources.DATABASE_VARIABLE} instead",
            err=True,
        )
    plan = work.Plan(
        source=sources.Source.of(
            source,
            of_source,
            database_url=sources.database_of_queries(settings.database_url),
            columns=columns,
        ),
        args=_names(args),
        kwargs=pairs(_names(kwargs), "--kwargs"),
        limits=Limits(lag_seconds=max_lag, wal_bytes=max_wal * 2**20),
        **given,
    )
    session = partial(
        runtime.session, register=register, ours=plan.source.format in datasources.NAMES, java_options=SMALL
    )
    if dry_run:
        with progress.show() as step, session(step) as spark:
            step("counting the rows")
            found = work.preview(spark, plan, refused)
        _show_preview(plan, found, refused.found, as_json=as_json)
        return
    # First, so that a failed run can be repeated.
    click.echo(f"run {plan.run_id}", err=True)
    with progress.show() as step:
        result = work.run(
            settings.database_url,
            plan,
            lambda: session(step),
            step,
            refused=refused,
        )
    if refused.found:
        click.echo(f"{formatting.count(refused.found, 'reject')} in {reject}", err=True)
    if as_json:
        click.echo(json.dumps(vars(result)))
        return
    jobs = formatting.count(result.jobs, "job") + ("" if result.flow is None else f" as flow {result.flow}")
    if result.before:
        click.echo(f"run {result.run_id} had already staged its {jobs}; nothing was staged")
    else:
        click.echo(f"run {result.run_id} has staged {jobs} in {formatting.duration(result.seconds)}")


def _flow(given: dict[str, Any]) -> NewFlow | None:
    """Take the options of a flow."""
    name = given["flow"]
    of_flow = {option: value for option in _OF_FLOW if (value := given.pop(option)) is not None}
    if name is None:
        if of_flow:
            raise click.UsageError("callbacks, --description, --node, --after and --on-failure need --flow")
        return None
    if given["commit_every"] is not None:
        raise click.UsageError("a flow is staged in one commit: leave out --flow or --commit-every")
    for option in _CALLBACKS & of_flow.keys():
        of_flow[option] = _callback(option, of_flow[option])
    try:
        return new_flow(name, queue=given["queue"], priority=given["priority"], tag=given["tag"], **of_flow)
    except StageError as error:
        raise click.UsageError(str(error)) from None


def _callback(option: str, text: str) -> tuple[str, Any]:
    name, _, args = text.strip().partition(" ")
    try:
        return name, json.loads(args or "[]")
    except (ValueError, RecursionError):
        option = f"--{option.replace('_', '-')}"
        raise click.UsageError(f"{option} must be a job, and perhaps a JSON array: {text!r:.99}") from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _show_preview(plan: work.Plan, found: work.Preview, rejects: int, *, as_json: bool) -> None:
    if as_json:
        jobs = [
            {"job_args": json.loads(args), "job_kwargs": json.loads(kwargs)} for args, kwargs in found.shown
        ]
        counts = {"jobs": found.jobs, "duplicates": found.duplicates, "rejects": rejects}
        click.echo(json.dumps({**counts, "job_name": plan.job_name, "shown": jobs}))
        return
    for args, kwargs in found.shown:
        click.echo(visible(f"{plan.job_name}  {args}{'' if kwargs == '{}' else f'  {kwargs}'}"))
    if found.jobs > len(found.shown):
        click.echo("...")
    for number, words in ((found.duplicates, "duplicate"), (rejects, "reject")):
        if number:
            click.echo(formatting.count(number, words))
    click.echo(
        f"{formatting.count(found.jobs, 'job')} on queue {plan.queue} with priority {plan.priority}; nothing was staged"
    )
