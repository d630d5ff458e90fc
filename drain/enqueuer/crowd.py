"""Crowd: more lanes than a search may find; they take turns by name.

An application may choose very many queue names. That must neither slow down searches nor delay the lanes known earlier,
so these are looked up by name and go first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drain.database.postgres import Connection
from drain.tables import lanes
from drain.tables.lanes import Lane

MOST_FOUND = 1000
# A quarter of a batch's lanes; the rest belongs to the crowd.
_MOST_FAMILIAR = 250
# Beyond this, the oldest are forgotten, and found again in turn.
MOST_KNOWN = 2 * MOST_FOUND


class Crowd:
    """Finds lanes in turn, in a transaction; true while there are too many for a search."""

    def __init__(self, connection: Connection, kinds: Sequence[int]) -> None:
        self._connection = connection
        self._kinds = kinds
        self._is_there = False
        self._next = Lane(kinds[0], "")
        # Known before the crowd, latest last.
        self._familiar: dict[Lane, None] = {}

    def __bool__(self) -> bool:
        return self._is_there

    def begin(self) -> None:
        """Note that a search found too many."""
        self._is_there = True

    def remember(self, found: Iterable[Lane]) -> None:
        """Remember lanes without a crowd."""
        for lane in found:
            self._familiar.pop(lane, None)
            self._familiar[lane] = None
        while len(self._familiar) > _MOST_FAMILIAR:
            del self._familiar[next(iter(self._familiar))]

    def find(self) -> tuple[list[Lane], list[Lane]]:
        """Familiar lanes, and the crowd's next ones."""
        familiar = lanes.with_rows(self._connection, self._familiar) if self._familiar else []
        return familiar, self._walk()

    def _walk(self) -> list[Lane]:
        found: list[Lane] = []
        is_whole = self._next == Lane(self._kinds[0], "")
        for kind in self._kinds[self._kinds.index(self._next.kind) :]:
            behind = self._next.queue if kind == self._next.kind else ""
            found += lanes.walk(self._connection, kind, behind, MOST_FOUND - len(found))
            if len(found) >= MOST_FOUND:
                self._next = found[-1]
                return found
        self._next = Lane(self._kinds[0], "")
        # One walk found all: the crowd is gone.
        self._is_there = not is_whole
        return found
