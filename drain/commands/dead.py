"""`drain dead`: jobs that were given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from drain import wording
from drain.commands.database import database, hint_at_unknown
from drain.commands.jobs import print_job, print_jobs
from drain.commands.selecting import JOB_OPTIONS
from drain.config import Settings
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.tables import dead as dead_jobs
from drain.tables import queries
from drain.tables.dead import Selection
from drain.terminal.commandline import JOB_ID, F, as_json_option, limit_option, settings_options, wrapped


@click.group()
def dead() -> None:
    """List, show, retry or discard the jobs that were given up.

    A job is dead when it has no attempts left; when it raised Dead; when its expires_at has passed; when its row
    cannot be read; or when its worker process died on its last attempt. It stays until a person decides.

    \b
    drain dead list --queue mail
    drain dead show 42
    drain dead retry 42
    drain dead retry --queue mail --job shop.jobs.send_receipt
    drain dead discard --all --yes
    """  # noqa: D301


@dead.command("list", short_help="List dead jobs with their errors.")
@settings_options("database_url")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--job", help="Only jobs of this job name.")
@click.option("--tag", help="Only jobs with this tag.")
@limit_option
@as_json_option
def list_dead(
    settings: Settings, *, queue: str | None, job: str | None, tag: str | None, limit: int, as_json: bool
) -> None:
    """List dead jobs, the latest first, a line for each, which ends with the error.

    `drain dead show ID` and --json have the whole error, with its traceback.

    \b
    drain dead list --queue mail --limit 100
    drain dead list --json | jq '.[].last_error.type'
    """  # noqa: D301
    with database(settings) as connection:
        jobs = queries.jobs(connection, "dead", limit=limit, queue=queue, job_name=job, tag=tag)
        if queue and not jobs:
            hint_at_unknown([queue], queries.queues(connection))
        now = queries.now(connection)
    print_jobs("dead", jobs, now, as_json=as_json)


@dead.command("show", short_help="Show all that is known about one dead job.")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url")
@as_json_option
def show_dead(settings: Settings, *, job_id: int, as_json: bool) -> None:
    """Show all that is known about one dead job: its arguments, its traceback, its former lives.

    A job that was retried and died again shows its earlier deaths as former lives.

    \b
    drain dead show 42
    drain dead show 42 --json | jq .job_args
    """  # noqa: D301
    with database(settings) as connection:
        job = queries.job(connection, job_id)
        now = queries.now(connection)
    if job["state"] != "dead":
        raise DrainError(f"job {job_id} is not dead, it is {job['state']}; `drain show {job_id}` shows it")
    print_job(job, now, as_json=as_json)


def selection_options(command: F) -> F:
    """Add the options that choose dead jobs to a command; the command gets one `Selection`."""

    def with_selection(
        *,
        ids: tuple[int, ...],
        queue: str | None,
        job: str | None,
        tag: str | None,
        everything: bool,
        **given: Any,
    ) -> Any:
        is_named = bool(ids or queue or job or tag)
        if everything and is_named:
            raise click.UsageError("either name the jobs or --all, not both")
        if not everything and not is_named:
            raise click.UsageError("name the jobs: IDs, --queue, --job or --tag; or --all for all of them")
        return command(selection=Selection(ids or None, queue, job, tag), **given)

    options = (
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--all", "everything", is_flag=True, help="All dead jobs."),
        *JOB_OPTIONS,
    )
    return wrapped(command, with_selection, options)


@dead.command(short_help="Stage dead jobs again, with all of their attempts.")
@settings_options("database_url")
@selection_options
def retry(settings: Settings, selection: Selection, *, yes: bool) -> None:
    """Stage dead jobs again, with all of their attempts. Their errors stay on record.

    Options combine: --queue and --job choose the jobs that have both.

    \b
    drain dead retry 42
    drain dead retry --queue mail --job shop.jobs.send_receipt --yes
    """  # noqa: D301
    _act_on(settings, selection, "retry", dead_jobs.revive, yes=yes)


@dead.command()
@settings_options("database_url")
@selection_options
def discard(settings: Settings, selection: Selection, *, yes: bool) -> None:
    """Delete dead jobs permanently.

    Options combine: --queue and --job choose the jobs that have both.

    \b
    drain dead discard 42
    drain dead discard --tag import --yes
    """  # noqa: D301
    _act_on(settings, selection, "discard", dead_jobs.discard, yes=yes)


def _act_on(
    settings: Settings,
    selection: Selection,
    verb: str,
    act: Callable[[Connection, Selection], int],
    *,
    yes: bool,
) -> None:
    with database(settings) as connection:
        count = dead_jobs.count(connection, selection)
        others = dead_jobs.not_dead(connection, selection.ids or ())
    if others:
        raise DrainError(f"not dead: {', '.join(map(str, others))}; nothing was done")
    if not count:
        raise DrainError("no dead job matches; `drain list dead` shows what there is")
    if not yes:
        click.confirm(f"{verb} {wording.count(count, 'dead job')}?", abort=True)
    with database(settings) as connection:
        done = act(connection, selection)
    click.echo(f"{verb}: {wording.count(done, 'job')}")
