"""`drain jobs move`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import click

from drain.commands.database import database
from drain.commands.selecting import (
    STATEMENT_SECONDS,
    by_state,
    confirm,
    hint_at_unknown_queue,
    in_slices,
    missing_ids,
    report_ended,
    selection_options,
)
from drain.config import QUEUE_CHARACTERS, QUEUE_NAME, Settings
from drain.database.postgres import Connection
from drain.errors import ConfigError, DrainError
from drain.failpoints import FailurePoint, failpoint
from drain.formatting import count
from drain.read import queries
from drain.tables import changes
from drain.tables.changes import Change, Counted
from drain.tables.selections import Selection
from drain.terminal import progress
from drain.terminal.commandline import as_json_option, settings_options

_NOW = "now"
# As in the schema.
_EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
_LATEST = datetime(9999, 12, 30, tzinfo=UTC)


class _Priority(click.IntRange):
    name = "whole number"


@click.group("jobs")
def jobs() -> None:
    """Change waiting jobs.

    \b
    drain jobs move --queue mail --to slow-mail
    """  # noqa: D301


@jobs.command(short_help="Change the queue, priority or time of waiting jobs.")
@settings_options("database_url")
@click.option("--to", "to_queue", metavar="QUEUE", help="New queue.")
@click.option(
    "--priority", type=_Priority(-(2**31), 2**31 - 1), metavar="N", help="New priority; lower runs first."
)
@click.option("--run-at", metavar="TIME", help="Earliest start: 2026-12-01T08:00 (UTC by default), or now.")
@selection_options
@as_json_option
def move(
    settings: Settings,
    selection: Selection,
    *,
    to_queue: str | None,
    priority: int | None,
    run_at: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Change the queue, priority or time of waiting jobs.

    Changes staged jobs; with --to or --run-at also delivered and retrying jobs, which are delivered again. Running jobs
    are skipped and counted, as are delivered and retrying jobs if only --priority is given.

    \b
    drain jobs move 42 43 --run-at now
    drain jobs move --queue mail --tag import --to slow-mail --dry-run
    drain jobs move --key acme --priority 10 --yes
    """  # noqa: D301
    if to_queue is None and priority is None and run_at is None:
        raise click.UsageError("name a change: --to, --priority or --run-at")
    if to_queue is not None and not QUEUE_NAME.fullmatch(to_queue):
        raise ConfigError(f"{to_queue!r:.50} is not a queue name: {QUEUE_CHARACTERS}, at most 100 of them")
    with database(settings, STATEMENT_SECONDS) as connection:
        change = Change(to_queue, priority, _time(connection, run_at))
        counted = changes.count(connection, selection)
        report_ended(connection, selection, missing_ids(connection, selection), "moved")
        if not sum(counted):
            hint_at_unknown_queue(connection, selection)
    changing, left = _parts(counted, change)
    if left:
        click.echo(f"unchanged: {by_state(left)}", err=True)
    if dry_run:
        text = f"would move: {by_state(changing)}"
        click.echo(_as_json(sum(changing), left, dry_run=True) if as_json else text)
        return
    if not sum(changing):
        raise DrainError("no movable job matches; nothing was done")
    confirm(f"move {count(sum(changing), 'job')} ({by_state(changing)})?", yes=yes)
    with database(settings, STATEMENT_SECONDS) as connection:
        done = _move(connection, selection, change)
    click.echo(_as_json(done, left, dry_run=False) if as_json else f"moved: {count(done, 'job')}")


def _as_json(moved: int, left: Counted | None, *, dry_run: bool) -> str:
    return json.dumps({"dry_run": dry_run, "moved": moved, "left": sum(left or ())})


def _parts(counted: Counted, change: Change) -> tuple[Counted, Counted | None]:
    stays = counted._replace(staged=0)
    if change.reaches_deliveries:
        stays = stays._replace(delivered=0, retrying=0, parked=0)
    changes_ = Counted(*(number - left for number, left in zip(counted, stays, strict=True)))
    return changes_, stays if sum(stays) else None


def _time(connection: Connection, text: str | None) -> datetime | None:
    if text is None or text == _NOW:
        return queries.now(connection) if text else None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--run-at {text}: not a time; write it as 2026-12-01T08:00, in UTC, or now"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not _EARLIEST < moment < _LATEST:
        raise ConfigError(f"--run-at {text}: the year must be from 1 to 9999")
    return moment


def _move(connection: Connection, selection: Selection, change: Change) -> int:
    acts: dict[str, Callable[[Connection, Selection, Change], list[int]]] = {
        "staged_jobs": changes.change_staged
    }
    if change.reaches_deliveries:
        acts["inflight_jobs"] = changes.change_inflight
    done = 0
    with progress.show() as show:
        for table, act in acts.items():
            step = partial(_act, act, connection, change)
            done += sum(1 for _ in in_slices(connection, table, selection, step, show, "moved"))
            failpoint(FailurePoint.CHANGED)
    changes.wake_leader(connection)
    return done


def _act(
    act: Callable[[Connection, Selection, Change], list[int]],
    connection: Connection,
    change: Change,
    part: Selection,
) -> list[int]:
    return act(connection, part, change)
