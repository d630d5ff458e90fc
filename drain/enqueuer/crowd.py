"""Crowd: more lanes than a search may find. They take turns in the order of their names; those known before come first.

Applications choose the names of queues, and one may choose very many. The work of a search must not grow with their
number, and the others must not wait behind them: lanes that had rows before the crowd came are looked up by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drain.database.postgres import Connection
from drain.tables import lanes
from drain.tables.lanes import Lane

# Upper bound of the lanes that a search finds.
MOST_FOUND = 1000
# Upper bound of the lanes that are remembered by name: a quarter of those that a batch reads; the rest are the crowd's.
_MOST_FAMILIAR = 250
# Upper bound of the lanes that are known at a time: beyond it the ones that came first are found again in their turn.
MOST_KNOWN = 2 * MOST_FOUND


class Crowd:
    """Finds lanes of some kinds, a part of them at a time; true while there are more than a search may find.

    Args:
        connection: The leader's, in a transaction whenever `find` is called.
        kinds: Kinds of the lanes.
    """

    def __init__(self, connection: Connection, kinds: Sequence[int]) -> None:
        self._connection = connection
        self._kinds = kinds
        self._is_there = False
        self._next = Lane(kinds[0], "")
        # Lanes that had rows while there was no crowd, the latest last.
        self._familiar: dict[Lane, None] = {}

    def __bool__(self) -> bool:
        return self._is_there

    def begin(self) -> None:
        """Note that a search has found too many lanes."""
        self._is_there = True

    def remember(self, found: Iterable[Lane]) -> None:
        """Remember lanes found while no crowd exists."""
        for lane in found:
            self._familiar.pop(lane, None)
            self._familiar[lane] = None
        while len(self._familiar) > _MOST_FAMILIAR:
            del self._familiar[next(iter(self._familiar))]

    def find(self) -> tuple[list[Lane], list[Lane]]:
        """Find the lanes that were familiar before the crowd, and the next ones of the crowd."""
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
        # All of them in one walk: the crowd is gone.
        self._is_there = not is_whole
        return found
