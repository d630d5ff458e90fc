"""Looking again: a system that lives is always in the middle of something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic, sleep
from typing import Protocol, TypeVar

from drain.audit.report import Breach
from drain.database.postgres import Connection
from drain.tables import queries

T = TypeVar("T")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class Watch(Protocol):
    """Finds at its first look what seems wrong, and drops at later ones what has cleared."""

    @property
    def in_doubt(self) -> bool:
        """Whether to look again before these are called breaches."""

    def look(self) -> None:
        """Look once."""

    def breaches(self) -> list[Breach]:
        """What has seemed wrong at every look so far."""

    def unchecked(self) -> dict[str, str]:
        """Checks that could not be made, and why: the store did not answer at the last look."""


def settle(watches: Sequence[Watch], patience_seconds: float, progress: Callable[[str], None]) -> None:
    """Look once, and again until nothing is in doubt or patience is over."""
    for watch in watches:
        watch.look()
    deadline = monotonic() + patience_seconds
    pause = _FIRST_PAUSE_SECONDS
    while (doubtful := [watch for watch in watches if watch.in_doubt]) and monotonic() < deadline:
        progress(f"looking again for up to {patience_seconds:g} s whether what seems wrong clears")
        sleep(max(0.0, min(pause, deadline - monotonic())))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        for watch in doubtful:
            watch.look()


def slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    rest = iter(items)
    while slice_ := list(islice(rest, size)):
        yield slice_


def nobody_leads(connection: Connection) -> str:
    """What to add to an explanation while there is no leader; else nothing."""
    return "" if queries.leader(connection) else "; nobody leads, start `drain run`"
