"""`drain reconcile`."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from drain import formatting
from drain.pipeline import reconcile as work, runs, sources
from drain.pipeline.commands.options import Runtime, pairs, spark_options
from drain.pipeline.comparison import DELETED, DIFFERENT
from drain.pipeline.sides import Columns, Pair
from drain.terminal import progress
from drain.terminal.commandline import as_json_option, settings_options

if TYPE_CHECKING:
    from drain.config import Settings


@click.command(short_help="Stage a job for each difference between two data sets.")
@settings_options("database_url")
@click.option("--source", required=True, help="Source of truth.")
@click.option("--target", required=True, help="Data set that must match the source.")
@click.option(
    "--key",
    required=True,
    metavar="COLUMNS",
    help="Key columns, also the jobs' arguments: tenant,id.",
)
@click.option("--version", metavar="COLUMN", help="Version column to compare.")
@click.option("--compare", default="", metavar="COLUMNS", help="Columns to compare instead of --version.")
@click.option("--job", "job_name", required=True, help="Job for keys missing or outdated in the target.")
@click.option("--delete-job", help="Job for keys deleted at the source; only counted by default.")
@click.option(
    "--max-deletes",
    default=work.MAX_DELETES,
    show_default=True,
    metavar="NUMBER|PERCENT%",
    help="Maximum deletions, as a number or percentage of the target.",
)
@click.option(
    "--on-null",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="Action for rows with a null key.",
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
@click.option("--report", metavar="PATH", help="Parquet directory for the differences.")
@click.option("--run-id", help="Id of the run; generated and printed by default.")
@click.option(
    "--source-column",
    "source_columns",
    multiple=True,
    metavar="NAME=EXPRESSION",
    help="Computed source column, in Spark SQL; repeatable.",
)
@click.option(
    "--target-column",
    "target_columns",
    multiple=True,
    metavar="NAME=EXPRESSION",
    help="Computed target column; repeatable.",
)
@click.option(
    "--source-option",
    "source_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the source format, such as database_url=… for sql; repeatable.",
)
@click.option(
    "--target-option",
    "target_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the target format; repeatable.",
)
@click.option(
    "--register",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Python data source to register; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Compare and count without staging jobs.")
@spark_options
@as_json_option
def reconcile(
    settings: Settings,
    runtime: Runtime,
    *,
    source: str,
    target: str,
    key: str,
    version: str | None,
    compare: str,
    source_columns: tuple[str, ...],
    target_columns: tuple[str, ...],
    source_options: tuple[str, ...],
    target_options: tuple[str, ...],
    register: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare a source of truth with a target, and stage a job for each difference, all in one commit.

    Both sides use the SOURCE forms of `drain backfill`. If the target names a column differently, write id=document_id;
    --source-column and --target-column define computed columns.

    Each job gets the key as arguments. When it runs, it must make the target match the source, and a delete job must
    check that the source still lacks the key. Keys with a waiting job are skipped, so repeating the command is safe.
    Exit code 1: --max-deletes refused the run.

    \b
    drain reconcile --source 'sql:SELECT id, version FROM documents' \\
        --target index.parquet --key id=document_id --version version \\
        --job shop.index --delete-job shop.index --dry-run
    drain reconcile --source lake.parquet --target shop_index:/var/lib/index \\
        --register shop.spark:IndexSource --key id --compare name,text \\
        --job shop.index --queue bulk --report differences.parquet
    drain reconcile --source accounts.csv --target crm.parquet --key id \\
        --source-column 'email=lower(trim(email))' --compare email \\
        --job crm.update
    """  # noqa: D301
    if bool(version) == bool(compare):
        raise click.UsageError("give --version, one column, or --compare, one or more; not both")
    if given["run_id"] is None:
        given["run_id"] = runs.new_run_id("reconcile")
    url = settings.database_url
    plan = work.Plan(
        source=sources.Source.of(
            source, pairs(source_options, "--source-option"), database_url=sources.database_of_queries(url)
        ),
        target=sources.Source.of(target, pairs(target_options, "--target-option"), database_url=url),
        columns=Columns(
            key=_columns(key, "--key"),
            version=_columns(version, "--version", most=1)[0] if version else None,
            compare=_columns(compare, "--compare") if compare else (),
        ),
        source_columns=pairs(source_columns, "--source-column"),
        target_columns=pairs(target_columns, "--target-column"),
        **given,
    )
    with progress.show() as step:
        session = partial(runtime.session, step, register)
        if dry_run:
            result = work.count(url, plan, session, step)
        else:
            click.echo(f"run {plan.run_id}", err=True)
            result = work.run(url, plan, session, step)
    if as_json:
        click.echo(json.dumps(vars(result) | {"dry_run": dry_run}))
    else:
        _show(plan, result, dry_run=dry_run)


def _columns(text: str, option: str, most: int | None = None) -> list[Pair]:
    split = [name.partition("=") for name in text.split(",")]
    found = [Pair(ours.strip(), (theirs if equals else ours).strip()) for ours, equals, theirs in split]
    if not all(name for pair in found for name in pair) or len(found) > (most or len(found)):
        many = "one column" if most == 1 else "columns"
        raise click.UsageError(f"{option} must be {many}, each NAME or SOURCE=TARGET, not {text!r}")
    return found


def _show(plan: work.Plan, result: work.Result, *, dry_run: bool) -> None:
    jobs = formatting.count(result.staged, "job")
    if not result.reasons:
        click.echo(f"run {result.run_id} had already staged its {jobs}; nothing was compared")
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for reason, keys in result.reasons.items():
        table.add_row(reason, f"{keys:,}")
        for column, changed in result.changed.items() if reason == DIFFERENT else ():
            table.add_row(f"  {column}", f"{changed:,}")
    Console(highlight=False, markup=False).print(table)
    if any(result.skipped.values()):
        rows = " and ".join(f"{number:,} in the {side}" for side, number in result.skipped.items())
        click.echo(f"rows without a key, skipped: {rows}")
    waiting = f"; for {result.waiting:,} more a job is already waiting" if result.waiting else ""
    if result.refused:
        click.echo(f"a run would stage nothing: {result.refused}")
    elif dry_run:
        click.echo(f"{jobs} would be staged{waiting}; nothing was")
    else:
        click.echo(f"{jobs} staged on queue {plan.queue} in {formatting.duration(result.seconds)}{waiting}")
    if result.reasons[DELETED] and not plan.delete_job:
        click.echo("keys that were deleted at the source stay in the target: there is no --delete-job")
