"""Repeated looks, as moving jobs may look wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic, sleep
from typing import Protocol, TypeVar

from drain.audit.report import Breach
from drain.database.postgres import Connection
from drain.read import queries

T = TypeVar("T")

# Before the second look; doubles up to the longest.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class LiveCheck(Protocol):
    """Check that drops cleared suspicions."""

    @property
    def in_doubt(self) -> bool:
        """True while another look is needed."""

    def look(self) -> None:
        """Look once."""

    def breaches(self) -> list[Breach]:
        """List the suspects found every time."""

    def unchecked(self) -> dict[str, str]:
        """Return checks that a store prevented, with reasons."""


def look_until_clear(
    checks: Sequence[LiveCheck], patience_seconds: float, progress: Callable[[str], None]
) -> None:
    """Repeat checks in doubt, until patience ends."""
    for check in checks:
        check.look()
    deadline = monotonic() + patience_seconds
    pause = _FIRST_PAUSE_SECONDS
    while (doubtful := [check for check in checks if check.in_doubt]) and monotonic() < deadline:
        progress(f"rechecking suspects for up to {patience_seconds:g} s")
        sleep(max(0.0, min(pause, deadline - monotonic())))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        for check in doubtful:
            check.look()


def slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split items into lists of up to `size`."""
    rest = iter(items)
    while slice_ := list(islice(rest, size)):
        yield slice_


def no_leader_note(connection: Connection) -> str:
    """Return a suffix while there is no leader."""
    return "" if queries.leader(connection) else "; there is no leader, start `drain run`"
