"""`drain prune`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby

import click

from drain.commands.database import database
from drain.config import Settings
from drain.database import pooler
from drain.enqueuer import retention
from drain.errors import DrainError
from drain.formatting import count
from drain.tables import finished
from drain.tables.finished import Dropped
from drain.terminal.commandline import as_json_option, settings_options

_STATEMENT_SECONDS = 600


@click.command()
@settings_options("database_url")
@click.option(
    "--keep-days",
    type=click.IntRange(1, 36_500),
    required=True,
    envvar="DRAIN_KEEP_DAYS",
    show_envvar=True,
    help="Full days (UTC) to keep, not counting today.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be dropped.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@as_json_option
def prune(settings: Settings, *, keep_days: int, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Drop old days of completed jobs without archiving them.

    Keeps today and the --keep-days days before, by UTC, and all dead jobs. `drain run` does the same automatically;
    `drain archive` saves the jobs first.

    \b
    drain prune --keep-days 30 --dry-run
    drain prune --keep-days 30 --yes        from cron, as the tables' owner
    """  # noqa: D301
    with database(settings, _STATEMENT_SECONDS) as connection:
        found = [
            Dropped(day.date, finished.count_jobs(connection, day))
            for day in finished.closed_days(connection, keep_days)
        ]
    if dry_run or not found:
        _show(found, "would be dropped", as_json=as_json)
        return
    _confirm(found, yes=yes)
    with database(settings, _STATEMENT_SECONDS) as connection:
        pooler.require_own_session(connection, settings.database_url)
        dropped = _by_day(retention.prune(connection, keep_days))
        _show(dropped, "dropped", as_json=as_json)


def _confirm(days: list[Dropped], *, yes: bool) -> None:
    if yes:
        return
    extent = f"{count(len(days), 'day')} with {count(sum(day.jobs for day in days), 'finished job')}"
    if not sys.stdin.isatty():
        raise DrainError(
            f"{extent} would be dropped permanently; confirm with --yes, or preview with --dry-run"
        )
    click.confirm(f"drop {extent}, from {days[0].date} to {days[-1].date}, permanently?", abort=True)


def _by_day(dropped: Iterable[Dropped]) -> Iterator[Dropped]:
    # Without a partition, a day's rows are deleted in portions.
    for date, days in groupby(dropped, key=lambda day: day.date):
        yield Dropped(date, sum(day.jobs for day in days))


def _show(days: Iterable[Dropped], verb: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([{"day": str(day.date), "jobs": day.jobs} for day in days]))
        return
    empty = True
    for day in days:
        click.echo(f"{day.date}  {count(day.jobs, 'job')} {verb}")
        empty = False
    if empty:
        click.echo("nothing to drop")
