"""Options that select jobs, and work on them in slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click
import psycopg

from drain.commands.database import hint_at_unknown
from drain.database.postgres import Connection
from drain.formatting import count
from drain.jobs.editing import Edit
from drain.read import queries
from drain.tables import cancellations
from drain.tables.changes import Counted
from drain.tables.selections import Selection, slices
from drain.terminal.commandline import JOB_ID, F, wrapped

S = TypeVar("S")
T = TypeVar("T")

# A count may read millions of rows.
STATEMENT_SECONDS = 600
# In reverse order of the help.
JOB_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option("--tag", help="Jobs with this tag."),
    click.option("--job", help="Jobs with this name."),
    click.option("--queue", help="Jobs in this queue."),
    click.argument("ids", nargs=-1, metavar="[ID]...", type=JOB_ID),
)
# For a slice blocked by another transaction.
_TRIES = 10


def selection_options(command: F) -> F:
    """Add options that give a nonempty `Selection`."""

    def with_selection(
        *,
        ids: tuple[int, ...],
        queue: str | None,
        job: str | None,
        tag: str | None,
        key: str | None,
        **given: Any,
    ) -> Any:
        selection = Selection(ids or None, queue, job, tag, key)
        if not selection.parameters():
            raise click.UsageError("select jobs with IDs, --queue, --job, --tag or --key")
        return command(selection=selection, **given)

    options = (
        click.option("--yes", is_flag=True, help="Skip the confirmation."),
        click.option("--dry-run", is_flag=True, help="Count the jobs without changing them."),
        click.option("--key", help="Jobs with this key."),
        *JOB_OPTIONS,
    )
    return wrapped(command, with_selection, options)


def edit_options(command: F) -> F:
    """Add options that give an `Edit`, or None."""

    def with_edit(*, args: str | None, kwargs: str | None, **given: Any) -> Any:
        for option, text in (("--args", args), ("--kwargs", kwargs)):
            # From an unset variable of the shell, which must not keep the old arguments.
            if text is not None and not text.strip():
                raise click.UsageError(f"{option} is empty; leave it out to keep the job's own")
        edit = Edit(args or "", kwargs or "")
        return command(edit=None if edit.is_empty else edit, **given)

    options = (
        click.option("--kwargs", metavar="JSON", help="New keyword arguments, an object."),
        click.option("--args", metavar="JSON", help="New positional arguments, an array."),
    )
    return wrapped(command, with_edit, options)


def missing_ids(connection: Connection, selection: Selection) -> set[int]:
    """Find ids without a waiting or running job."""
    # In this order, moved rows are found in flight.
    tables = ("staged_jobs", "inflight_jobs") if selection.ids else ()
    parts = (part for table in tables for part in slices(connection, table, selection))
    return set(selection.ids or ()).difference(*(part.ids or () for part in parts))


def report_ended(
    connection: Connection, selection: Selection, missing: set[int], done: str = "cancelled"
) -> None:
    """Report why ids are missing."""
    ended = cancellations.whereabouts(connection, sorted(missing))
    unknown = "unknown (never staged, not committed, forwarded, or archived)"
    if len(selection.parameters()) > 1:
        unknown += ", or excluded by the other options"
    for state, why in (("finished", "already finished"), ("dead", "already dead"), (None, unknown)):
        ids = sorted(job_id for job_id in missing if ended.get(job_id) == state)
        if ids:
            click.echo(f"not {done}, {why}: {', '.join(map(str, ids))}", err=True)


def hint_at_unknown_queue(connection: Connection, selection: Selection) -> None:
    """Name the known queues if a selection names another."""
    if selection.queue is not None:
        hint_at_unknown([selection.queue], queries.queues(connection))


def by_state(counted: Counted) -> str:
    """Format job counts: `3 staged, 1 running`."""
    return ", ".join(f"{number} {state}" for state, number in counted._asdict().items() if number) or "none"


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless given."""
    if not yes:
        # Standard output may be JSON.
        click.confirm(question, abort=True, err=True)


def in_slices(
    connection: Connection,
    table: str,
    selection: Selection,
    act: Callable[[Selection], list[T]],
    progress: Callable[[str], None],
    verb: str,
) -> Iterator[T]:
    """Act on jobs in slices, each its own transaction; yield the answers.

    Retries a slice blocked by another transaction: a scheduled job came due.
    """
    done = 0
    for part in slices(connection, table, selection):
        found = repeated(act, part)
        yield from found
        done += len(found)
        progress(f"{verb}: {count(done, 'job')}")


def repeated(act: Callable[[S], T], part: S) -> T:
    """Act again, up to a bound, after a conflict with another transaction."""
    for _ in range(_TRIES - 1):
        try:
            return act(part)
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            continue
    return act(part)
