"""`drain cancel`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
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
from drain.config import Settings
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.failpoints import FailurePoint, failpoint
from drain.formatting import count
from drain.tables import cancellations, changes
from drain.tables.selections import Selection
from drain.terminal import progress
from drain.terminal.commandline import as_json_option, settings_options


@click.command(short_help="Cancel waiting or running jobs.")
@settings_options("database_url")
@selection_options
@as_json_option
def cancel(settings: Settings, selection: Selection, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Cancel waiting or running jobs. Options combine: --queue and --job select jobs that match both.

    Waiting jobs become dead, with the reason "cancelled"; `drain dead retry` restores them. A running job is
    interrupted at its next heartbeat and can no longer complete. Many jobs are cancelled in several transactions: after
    an interruption, run the command again.

    \b
    drain cancel 42 43
    drain cancel --queue mail --job shop.jobs.send_receipt --dry-run
    drain cancel --key acme --yes
    """  # noqa: D301
    selection = replace(selection, leaves_undos=True)
    with database(settings, STATEMENT_SECONDS) as connection:
        counted = changes.count(connection, selection)
        if dry_run:
            report_ended(connection, selection, missing_ids(connection, selection))
        if not sum(counted):
            hint_at_unknown_queue(connection, selection)
    if dry_run:
        text = f"would cancel: {by_state(counted)}"
        click.echo(_as_json(sum(counted), counted.running, dry_run=True) if as_json else text)
        return
    if sum(counted):
        confirm(f"cancel {count(sum(counted), 'job')} ({by_state(counted)})?", yes=yes)
    with database(settings, STATEMENT_SECONDS) as connection:
        named = set(selection.ids or ())
        cancelled = running = 0
        for job_id, was_claimed in cancel_selected(connection, selection):
            cancelled, running = cancelled + 1, running + was_claimed
            named.discard(job_id)
        report_ended(connection, selection, named)
    if not cancelled:
        raise DrainError("no waiting or running job matches; nothing was done")
    text = f"cancelled: {count(cancelled, 'job')}" + (f", {running:,} of them running" if running else "")
    click.echo(_as_json(cancelled, running, dry_run=False) if as_json else text)


def _as_json(cancelled: int, running: int, *, dry_run: bool) -> str:
    return json.dumps({"dry_run": dry_run, "cancelled": cancelled, "running": running})


def cancel_selected(connection: Connection, selection: Selection) -> Iterator[tuple[int, bool]]:
    """Cancel staged jobs first: moved rows are found in flight."""
    with progress.show() as show:
        for table, act in (
            ("staged_jobs", cancellations.cancel_staged),
            ("inflight_jobs", cancellations.cancel_inflight),
        ):
            yield from in_slices(connection, table, selection, partial(act, connection), show, "cancelled")
            failpoint(FailurePoint.CANCELLED)
