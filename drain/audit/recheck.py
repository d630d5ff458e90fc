"""Repeated looks: on a live system some jobs are under way at any instant, and seem wrong at a single look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic, sleep
from typing import Protocol, TypeVar

from drain.audit.report import Breach
from drain.database.postgres import Connection
from drain.read import queries

T = TypeVar("T")

# Pause before the second look, in seconds; doubles with each further look, up to the longest.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class LiveCheck(Protocol):
    """A check of a live system: its first look finds what seems wrong, later looks drop what has cleared."""

    @property
    def in_doubt(self) -> bool:
        """True while something seems wrong, so that another look is needed before it is called a breach."""

    def look(self) -> None:
        """Look once."""

    def breaches(self) -> list[Breach]:
        """List what has seemed wrong at every look so far."""

    def unchecked(self) -> dict[str, str]:
        """Name the checks that could not be made, and why: the store did not answer at the last look."""


def look_until_clear(
    checks: Sequence[LiveCheck], patience_seconds: float, progress: Callable[[str], None]
) -> None:
    """Let each check look once, and again until nothing is in doubt or the patience is over.

    Args:
        checks: Checks to make.
        patience_seconds: Upper bound of the time in which doubtful checks look again.
        progress: Called with a line for people before each further round of looks.
    """
    for check in checks:
        check.look()
    deadline = monotonic() + patience_seconds
    pause = _FIRST_PAUSE_SECONDS
    while (doubtful := [check for check in checks if check.in_doubt]) and monotonic() < deadline:
        progress(f"looking again for up to {patience_seconds:g} s whether what seems wrong clears")
        sleep(max(0.0, min(pause, deadline - monotonic())))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        for check in doubtful:
            check.look()


def slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut the items into lists of `size`; the last one may be shorter."""
    rest = iter(items)
    while slice_ := list(islice(rest, size)):
        yield slice_


def no_leader_note(connection: Connection) -> str:
    """Build the end of an explanation while there is no leader; an empty text while there is one."""
    return "" if queries.leader(connection) else "; there is no leader, start `drain run`"
