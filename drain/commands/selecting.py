"""Options that select jobs which wait or run, and the slices in which a command works on many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
import psycopg

from drain.tables.changes import Counted
from drain.tables.selections import Selection
from drain.terminal.commandline import JOB_ID, F
from drain.wording import count

T = TypeVar("T")

# Timeout of one statement, in seconds: a count reads millions of rows.
STATEMENT_SECONDS = 600
# Upper bound of the jobs that one transaction of a command changes: locks are held for a moment only.
SLICE = 10_000
# Number of tries of a slice that another transaction was in the way of.
_TRIES = 10


def selection_options(command: F) -> F:
    """Add the options that select jobs to a command; the command gets one `Selection`, which is not empty."""

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
            raise click.UsageError("name the jobs: IDs, --queue, --job, --tag or --key")
        return command(selection=selection, **given)

    with_selection.__name__, with_selection.__doc__ = command.__name__, command.__doc__
    with_selection.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--dry-run", is_flag=True, help="Count the jobs, and change nothing."),
        click.option("--key", help="Jobs with this key."),
        click.option("--tag", help="Jobs with this tag."),
        click.option("--job", help="Jobs of this job name."),
        click.option("--queue", help="Jobs of this queue."),
        click.argument("ids", nargs=-1, metavar="[ID]...", type=JOB_ID),
    ):
        with_selection = option(with_selection)
    return with_selection  # type: ignore[return-value]


def by_state(counted: Counted) -> str:
    """Return the numbers of jobs in words: '3 staged, 1 running'."""
    return ", ".join(f"{number} {state}" for state, number in counted._asdict().items() if number) or "none"


def confirm(question: str, *, yes: bool) -> None:
    """Ask a person, unless --yes has answered already."""
    if not yes:
        click.confirm(question, abort=True)


def in_slices(
    step: Callable[[int], list[T]], id_of: Callable[[T], int], progress: Callable[[str], None], verb: str
) -> Iterator[T]:
    """Call a step with the last id until it finds no more jobs, each call a transaction of its own; yield the jobs.

    A step that another transaction was in the way of is repeated: a scheduled job has just come due.
    """
    after, done = 0, 0
    while found := _repeated(step, after):
        yield from found
        after, done = id_of(found[-1]), done + len(found)
        progress(f"{verb}: {count(done, 'job')}")
        if len(found) < SLICE:
            return


def _repeated(step: Callable[[int], list[T]], after: int) -> list[T]:
    for _ in range(_TRIES - 1):
        try:
            return step(after)
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            continue
    return step(after)
