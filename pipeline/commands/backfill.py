"""`drain backfill`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drain import formatting
from drain.formatting import visible
from drain.pipeline import backfill as work
from drain.pipeline import datasources, runs, sources
from drain.pipeline.commands.options import Runtime, pairs, spark_options
from drain.pipeline.rejects import Rejects
from drain.pipeline.runs import Limits
from drain.pipeline.session import SMALL
from drain.terminal import progress
from drain.terminal.commandline import FiniteRange, as_json_option, settings_options

if TYPE_CHECKING:
    from drain.config import Settings


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
        --max-rows-per-second 500
    """  # noqa: D301
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
    jobs = formatting.count(result.jobs, "job")
    if result.before:
        click.echo(f"run {result.run_id} had already staged its {jobs}; nothing was staged")
    else:
        click.echo(f"run {result.run_id} has staged {jobs} in {formatting.duration(result.seconds)}")


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
