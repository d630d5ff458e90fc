"""`drain cron`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from drain.commands.database import database
from drain.config import Settings
from drain.database.postgres import Connection
from drain.errors import DrainError, JobModuleError
from drain.formatting import count, relative, visible
from drain.read import queries
from drain.tables import crons
from drain.terminal.commandline import as_json_option, settings_options
from drain.terminal.fitted_table import Column, fitted_table
from drain.terminal.values import json_default

NAMES = click.argument("names", metavar="NAME [NAME]...", nargs=-1, required=True)


@click.group(short_help="List, pause and run schedules.")
def cron() -> None:
    """List, pause and run schedules. Each stages a job at every tick.

    Schedules come from @job(cron=...), saved when `drain work` starts, or from drain.schedule().

    \b
    drain cron list
    drain cron pause shop.jobs.report
    drain cron run shop.jobs.report
    """  # noqa: D301


@cron.command("list", short_help="List schedules.")
@settings_options("database_url", "jobs")
@as_json_option
def list_schedules(settings: Settings, *, as_json: bool) -> None:
    """List schedules with their next and last ticks.

    With --jobs, marks the schedules that the code no longer declares.

    \b
    drain cron list --jobs shop.jobs
    drain cron list --json | jq '.[] | select(.paused) | .name'
    """  # noqa: D301
    from drain.jobs.timetable import with_next_tick

    known = _known(settings)
    with database(settings) as connection:
        now = queries.now(connection)
        schedules = [with_next_tick(schedule) for schedule in crons.all_schedules(connection)]
    for schedule in schedules:
        is_gone = schedule["declared"] and schedule["name"] not in known if known is not None else None
        schedule["gone"] = is_gone
    if as_json:
        click.echo(json.dumps(schedules, default=json_default))
    elif schedules:
        show_schedules(schedules, now)
    else:
        click.echo("no schedules; create one with @job(cron=...) or drain.schedule()", err=True)


@cron.command(short_help="Pause schedules.")
@NAMES
@settings_options("database_url")
def pause(settings: Settings, *, names: Sequence[str]) -> None:
    """Pause schedules until they are resumed, even if the code changes them.

    \b
    drain cron pause shop.jobs.report
    """  # noqa: D301
    _act_on(settings, names, crons.pause, "paused", otherwise="is already paused")


@cron.command(short_help="Resume paused schedules.")
@NAMES
@settings_options("database_url")
def resume(settings: Settings, *, names: Sequence[str]) -> None:
    """Resume schedules from the next tick. Ticks during the pause are skipped.

    \b
    drain cron resume shop.jobs.report
    """  # noqa: D301
    _act_on(settings, names, crons.resume, "resumed", otherwise="is not paused")


@cron.command(short_help="Stage one job of a schedule now.")
@click.argument("name", metavar="NAME")
@settings_options("database_url")
def run(settings: Settings, *, name: str) -> None:
    """Stage one job of a schedule now, in addition to its ticks, and print its id.

    \b
    drain cron run shop.jobs.report
    """  # noqa: D301
    with database(settings) as connection:
        _check(connection, [name])
        job_id = crons.stage_now(connection, name)
    click.echo(job_id)


@cron.command(short_help="Delete schedules.")
@NAMES
@settings_options("database_url")
def remove(settings: Settings, *, names: Sequence[str]) -> None:
    """Delete schedules; their staged jobs stay.

    A declared schedule returns when `drain work` restarts; pause it instead.

    \b
    drain cron remove shop.jobs.report
    """  # noqa: D301
    _act_on(settings, names, crons.remove, "removed", otherwise="is already gone")


@cron.command(short_help="Update schedules to match the code.")
@settings_options("database_url", "jobs")
@click.option("--prune", is_flag=True, help="Delete schedules the code no longer declares.")
def apply(settings: Settings, *, prune: bool) -> None:
    """Update schedules to match @job(cron=...), as `drain work` does at startup.

    Pauses and schedules made by drain.schedule() stay.

    \b
    drain cron apply --jobs shop.jobs,shop.reports --prune
    """  # noqa: D301
    schedules = _declared(settings)
    declared = {schedule["name"] for schedule in schedules}
    with database(settings) as connection, connection.transaction():
        before = {schedule["name"]: schedule["declared"] for schedule in crons.all_schedules(connection)}
        changed = crons.declare(connection, schedules)
        gone = [name for name, is_declared in before.items() if is_declared and name not in declared]
        removed = crons.remove(connection, gone) if prune and gone else []
    for name in sorted(changed):
        click.echo(f"{'changed' if name in before else 'scheduled'}: {visible(name)}")
    for name in sorted(removed):
        click.echo(f"removed: {visible(name)}")
    for name in sorted(set(gone) - set(removed)):
        click.echo(f"{visible(name)} is no longer declared; --prune removes it", err=True)
    for name in sorted(name for name in declared if before.get(name) is False):
        click.echo(f"{visible(name)} was created by an application and stays unchanged", err=True)
    click.echo(f"{count(len(declared), 'schedule')} declared, {len(changed)} changed, {len(removed)} removed")


def _declared(settings: Settings) -> list[dict[str, Any]]:
    from drain.jobs import registry, schedules

    # Job modules may be in the current directory.
    sys.path.insert(0, str(Path.cwd()))
    registry.load(settings.jobs)
    return schedules.declared()


def _known(settings: Settings) -> set[str] | None:
    if not settings.jobs:
        return None
    try:
        return {schedule["name"] for schedule in _declared(settings)}
    except JobModuleError as error:
        click.echo(visible(str(error)), err=True)
        return None


def _act_on(
    settings: Settings,
    names: Sequence[str],
    act: Callable[[Connection, Sequence[str]], list[str]],
    done: str,
    *,
    otherwise: str,
) -> None:
    with database(settings) as connection:
        _check(connection, names)
        changed = act(connection, names)
    for name in dict.fromkeys(names):
        if name in changed:
            click.echo(f"{done}: {visible(name)}")
        else:
            click.echo(f"{visible(name)} {otherwise}", err=True)


def _check(connection: Connection, names: Sequence[str]) -> None:
    known = crons.names(connection)
    for name in names:
        if name not in known:
            similar = get_close_matches(name, known, n=1)
            hint = f"did you mean {similar[0]}?" if similar else "see `drain cron list`"
            raise DrainError(f"no schedule is named {name!r}; {hint}")


def show_schedules(schedules: Sequence[dict[str, Any]], now: datetime) -> None:
    """Print schedules, and why some have no ticks."""
    console = Console(highlight=False, markup=False)
    columns = [column for column in _COLUMNS if column.title != "job" or console.width >= _WIDE]
    console.print(fitted_table(columns, schedules, now, console.width))
    for schedule in schedules:
        if schedule["error"]:
            _show_note(console, f"{schedule['name']} has no ticks: {schedule['error']}")
        elif schedule["gone"]:
            _show_note(console, f"{schedule['name']} is no longer declared; `drain cron remove` deletes it")


def _next(schedule: dict[str, Any], now: datetime) -> Text:
    if schedule["paused"]:
        return Text("paused", style="yellow")
    if schedule["error"]:
        return Text("none", style="red")
    return Text(relative(schedule["next_tick_at"], now))


def _last(schedule: dict[str, Any], now: datetime) -> Text:
    at = schedule["last_tick_at"]
    return Text("" if at is None else relative(at, now))


def _field(name: str) -> Callable[[dict[str, Any], datetime], str]:
    return lambda schedule, _now: visible(schedule[name])


# Minimum width for job names.
_WIDE = 120
_COLUMNS = (
    Column("name", _field("name"), "end", share=3),
    Column("cron", _field("cron"), "end"),
    Column("zone", _field("timezone"), "end", least=8),
    Column("job", _field("job_name"), "start", share=2),
    Column("next tick", _next),
    Column("last tick", _last),
)


def _show_note(console: Console, text: str) -> None:
    console.print(Text(visible(text), style="yellow"))
