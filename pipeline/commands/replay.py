"""`drain replay`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from drain import formatting
from drain.formatting import visible
from drain.pipeline import replay as work, runs
from drain.pipeline.commands.options import Runtime, spark_options
from drain.pipeline.session import SMALL
from drain.terminal import progress
from drain.terminal.commandline import FiniteRange, as_json_option, settings_options

if TYPE_CHECKING:
    from drain.config import Settings


@click.command(short_help="Stage completed jobs again.")
@settings_options("database_url")
@click.option(
    "--archive", envvar="DRAIN_ARCHIVE", show_envvar=True, metavar="PATH", help="Path of the archive."
)
@click.option("--finished", is_flag=True, help="Include completed jobs still in PostgreSQL.")
@click.option(
    "--where",
    required=True,
    metavar="CONDITION",
    help="Spark SQL condition on finished_jobs' columns and finished_date; 'true' for all.",
)
@click.option("--job", "job_name", required=True, help="Job name to replay.")
@click.option("--as", "as_name", metavar="JOB", help="New job name.")
@click.option("--queue", help="New queue; each job's own by default.")
@click.option(
    "--priority",
    type=click.IntRange(-(2**31), 2**31 - 1),
    help="New priority; each job's own by default.",
)
@click.option("--tag", help="New tag; each job's own by default.")
@click.option("--run-id", help="Id of the run; the same id never stages twice.")
@click.option(
    "--max-rows-per-second",
    "rows_per_second",
    type=FiniteRange(min=0, min_open=True),
    help="Jobs that come due per second, from the commit.",
)
@click.option("--dry-run", is_flag=True, help="Count the jobs and show ten without staging them.")
@spark_options
@as_json_option
def replay(
    settings: Settings,
    runtime: Runtime,
    *,
    run_id: str | None,
    rows_per_second: float | None,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Stage completed jobs again as new jobs, all in one commit.

    Each keeps its arguments, queue, priority, tag, key and context; it is due now, without expiry or unique key.
    Superseded jobs are skipped. Repeating a run with the same --run-id never stages a job twice.

    \b
    drain replay --archive /lake/jobs --job shop.send_receipt --dry-run \\
        --where "finished_date = '2026-11-20' AND tag = 'checkout'"
    drain replay --archive /lake/jobs --job shop.send_receipt \\
        --where "finished_date = '2026-11-20'" --run-id receipts-again \\
        --queue bulk --max-rows-per-second 50
    drain replay --finished --job shop.index --as shop.index_v2 \\
        --where "finished_at > '2026-11-22 08:00'" --run-id index-v2
    """  # noqa: D301
    _check(given, run_id, dry_run=dry_run)
    run = runs.Run(run_id=run_id or "", rows_per_second=rows_per_second)
    plan = work.Plan(run=run, **given)
    if dry_run:
        with progress.show() as step, runtime.session(step, ours=plan.finished, java_options=SMALL) as spark:
            step("counting the jobs")
            found = work.preview(settings.database_url, spark, plan)
        _show_preview(plan, found, as_json=as_json)
        return
    with progress.show() as step:
        result = work.run(
            settings.database_url,
            plan,
            lambda: runtime.session(step, ours=plan.finished, java_options=SMALL),
            step,
        )
    if as_json:
        click.echo(json.dumps(vars(result)))
        return
    jobs = formatting.count(result.jobs, "job")
    name = visible(result.run_id)
    if result.before:
        click.echo(f"run {name} had already staged its {jobs}; nothing was staged")
    else:
        click.echo(f"run {name} has staged {jobs} again in {formatting.duration(result.seconds)}")


def _check(given: dict[str, Any], run_id: str | None, *, dry_run: bool) -> None:
    if not given["archive"] and not given["finished"]:
        raise click.UsageError("name the --archive, or --finished for jobs still in PostgreSQL, or both")
    if not given["where"].strip():
        raise click.UsageError("--where is empty; 'true' stages all jobs of this name again")
    if not run_id and not dry_run:
        raise click.UsageError(
            "name the run by --run-id, such as receipts-again: the same id stages nothing twice; or look with --dry-run"
        )


def _show_preview(plan: work.Plan, found: work.Preview, *, as_json: bool) -> None:
    name = plan.as_name or plan.job_name
    if as_json:
        shown = [
            {"job_args": json.loads(args), "job_kwargs": json.loads(kwargs)} for args, kwargs in found.shown
        ]
        ends = {"first_finished_at": found.first, "last_finished_at": found.last}
        times = {key: moment and moment.isoformat() for key, moment in ends.items()}
        told = {"jobs": found.jobs, "job_name": name, "queues": found.queues, **times, "shown": shown}
        click.echo(json.dumps(told))
        return
    for args, kwargs in found.shown:
        click.echo(visible(f"{name}  {args}{'' if kwargs == '{}' else f'  {kwargs}'}"))
    if found.jobs > len(found.shown):
        click.echo("...")
    if found.first is not None and found.last is not None:
        click.echo(f"finished from {formatting.clock(found.first)} to {formatting.clock(found.last)}")
    for queue, jobs in found.queues.items():
        click.echo(visible(f"{formatting.count(jobs, 'job')} on queue {queue}"))
    click.echo(f"{formatting.count(found.jobs, 'job')} would be staged again; nothing was staged")
