"""`drain dead`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from drain import formatting
from drain.commands.database import database, hint_at_unknown
from drain.commands.jobs import print_job, print_jobs
from drain.commands.selecting import JOB_OPTIONS, edit_options
from drain.config import Settings
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.formatting import relative, visible
from drain.jobs.editing import Edit, check, revive_edited
from drain.read import dead_groups, queries
from drain.read.dead_groups import Group, Groups
from drain.tables import dead as dead_jobs
from drain.tables.dead import FASTEST, SLOWEST, Selection
from drain.terminal.commandline import JOB_ID, F, as_json_option, limit_option, settings_options, wrapped
from drain.terminal.fitted_table import Column, fitted_table
from drain.terminal.values import WORDS_OF_STATES, json_default


class _Rate(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        rate: float = super().convert(value, param, ctx)
        # NaN passes every bound.
        return self.fail(f"{value!r} is not a rate", param, ctx) if math.isnan(rate) else rate


@click.group()
def dead() -> None:
    """List, group, show, retry or discard dead jobs.

    A job dies when it runs out of attempts, raises Dead, expires, is cancelled, or cannot be read. It stays until the
    tables' owner retries or discards it.

    \b
    drain dead groups
    drain dead list --queue mail
    drain dead retry --queue mail --job shop.jobs.send_receipt
    drain dead discard --all --yes
    """  # noqa: D301


@dead.command("list", short_help="List dead jobs with their errors.")
@settings_options("database_url")
@click.option("--queue", help="Only this queue.")
@click.option("--job", help="Only this job name.")
@click.option("--tag", help="Only this tag.")
@limit_option
@as_json_option
def list_dead(
    settings: Settings, *, queue: str | None, job: str | None, tag: str | None, limit: int, as_json: bool
) -> None:
    """List dead jobs with their errors, latest first.

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


@dead.command("groups", short_help="Group dead jobs by job name and error location.")
@settings_options("database_url")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Maximum number of groups.",
)
@as_json_option
def groups(settings: Settings, *, limit: int, as_json: bool) -> None:
    """Group the 10,000 dead jobs staged last by job name and error location, largest group first.

    The location is the innermost frame in your own code. Jobs without an exception are grouped by reason: expired,
    lease, cancelled, unreadable.

    \b
    drain dead groups
    drain dead retry $(drain dead groups --json | jq '.groups[0].ids[]')
    """  # noqa: D301
    with database(settings) as connection:
        found = dead_groups.read_groups(connection)
        now = queries.now(connection)
    shown = found._replace(groups=found.groups[:limit])
    if as_json:
        click.echo(json.dumps(groups_as_json(shown), default=json_default))
    elif found.groups:
        show_groups(shown.groups, now)
    else:
        click.echo("no dead jobs", err=True)
    if found.has_more:
        click.echo(
            f"there are more: only the {found.looked_at:,} dead jobs staged last were read",
            err=True,
        )


@dead.command("show", short_help="Show one dead job.")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url")
@as_json_option
def show_dead(settings: Settings, *, job_id: int, as_json: bool) -> None:
    """Show one dead job: its arguments, its traceback, and its earlier deaths.

    \b
    drain dead show 42
    drain dead show 42 --json | jq .job_args
    """  # noqa: D301
    with database(settings) as connection:
        job = queries.job(connection, job_id)
        now = queries.now(connection)
    if job["state"] != "dead":
        state = WORDS_OF_STATES.get(job["state"], job["state"])
        raise DrainError(f"job {job_id} is {state}, not dead: see `drain show {job_id}`")
    print_job(job, now, as_json=as_json)


def selection_options(command: F) -> F:
    """Add options that give a `Selection`."""

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
            raise click.UsageError("select jobs or give --all, not both")
        if not everything and not is_named:
            raise click.UsageError("select jobs with IDs, --queue, --job or --tag, or give --all")
        return command(selection=Selection(ids or None, queue, job, tag), **given)

    options = (
        click.option("--yes", is_flag=True, help="Skip the confirmation."),
        click.option("--all", "everything", is_flag=True, help="All dead jobs."),
        *JOB_OPTIONS,
    )
    return wrapped(command, with_selection, options)


@dead.command(short_help="Retry dead jobs.")
@settings_options("database_url")
@click.option(
    "--per-second",
    type=_Rate(SLOWEST, FASTEST),
    help="Jobs per second to retry.  [default: all at once]",
)
@edit_options
@selection_options
def retry(
    settings: Settings, selection: Selection, *, per_second: float | None, edit: Edit | None, yes: bool
) -> None:
    """Retry dead jobs with a fresh set of attempts. Options combine.

    With --per-second, the jobs come due one after another, in id order. --args and --kwargs replace the arguments of
    one job, which `drain show` then lists with its earlier death.

    \b
    drain dead retry 42
    drain dead retry 42 --args '["tea", 3]'
    drain dead retry --queue mail --job shop.jobs.send_receipt --yes
    drain dead retry --queue mail --per-second 10
    """  # noqa: D301
    if edit is None:
        _act_on(settings, selection, "retry", partial(dead_jobs.revive, per_second=per_second), yes=yes)
        return
    ids = selection.ids or ()
    if len(ids) != 1 or per_second is not None:
        raise click.UsageError("give one ID with --args or --kwargs, and no --per-second")
    act = partial(revive_edited, job_id=ids[0], edit=edit)
    _act_on(settings, selection, "retry", act, partial(check, job_id=ids[0], edit=edit), yes=yes)


@dead.command()
@settings_options("database_url")
@selection_options
def discard(settings: Settings, selection: Selection, *, yes: bool) -> None:
    """Delete dead jobs permanently. Options combine.

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
    check: Callable[[Connection], object] = lambda _: None,
    *,
    yes: bool,
) -> None:
    with database(settings) as connection:
        asked_at = queries.now(connection)
        count = dead_jobs.count(connection, selection)
        others = dead_jobs.not_dead(connection, selection.ids or ())
        undone = dead_jobs.being_undone(connection, selection) if verb == "retry" else []
        check(connection)
    if others:
        raise DrainError(f"not dead: {', '.join(map(str, others))}; nothing was done")
    if undone and (selection.ids or len(undone) == count):
        raise DrainError(f"{undone[0]}; nothing was done")
    for line in undone:
        click.echo(line, err=True)
    if not count:
        raise DrainError("no dead job matches; see `drain list dead`")
    if not yes:
        click.confirm(f"{verb} {formatting.count(count, 'dead job')}?", abort=True)
        # Leave out jobs that died after the question.
        selection = replace(selection, died_by=asked_at)
    with database(settings) as connection, connection.transaction():
        done = act(connection, selection)
        left = replace(selection, died_by=asked_at)
        why = dead_jobs.why_left(connection, left, verb) if done < count else ""
        if why and (selection.ids or not done):
            raise DrainError(f"{why}; nothing was done")
    click.echo(f"{verb}: {formatting.count(done, 'job')}")
    if why and not undone:
        click.echo(f"left {formatting.count(count - done, 'job')}: {why}", err=True)


def show_groups(groups: Sequence[Group], now: datetime) -> None:
    """Print groups, one per line."""
    console = Console(highlight=False, markup=False)
    rows = [{"group": group} for group in groups]
    console.print(fitted_table(_COLUMNS, rows, now, console.width))


def groups_as_json(found: Groups) -> dict[str, Any]:
    """Convert groups to JSON types, except times."""
    return {
        "looked_at": found.looked_at,
        "has_more": found.has_more,
        "groups": [_as_json(group) for group in found.groups],
    }


def _as_json(group: Group) -> dict[str, Any]:
    latest = group.latest
    return {
        "group": group.digest,
        "job_name": latest.job_name,
        "frame": latest.frame._asdict() if latest.frame else None,
        "reason": latest.reason,
        "jobs": len(group.deaths),
        "first_died_at": group.first_died_at,
        "last_died_at": latest.died_at,
        "error": latest.error,
        "message": latest.message,
        "ids": group.ids,
    }


def _error(row: dict[str, Any], _now: datetime) -> Text:
    latest = row["group"].latest
    kind = (latest.error or "").rpartition(".")[2]
    first = latest.message.strip().partition("\n")[0]
    return Text(visible(f"{kind}: {first}" if kind and latest.frame else first), style="red")


def _where(row: dict[str, Any], _now: datetime) -> str:
    latest = row["group"].latest
    return visible(latest.where.rpartition("/")[2] if latest.frame else latest.where)


_COLUMNS = (
    Column("jobs", lambda row, _: f"{len(row['group'].deaths):,}", is_number=True),
    Column("last died", lambda row, now: relative(row["group"].latest.died_at, now)),
    Column("job", lambda row, _: visible(row["group"].latest.job_name), "start", share=1.5, least=15),
    Column("where", _where, "end", share=2, least=15),
    Column("error", _error, "end", share=2),
)
