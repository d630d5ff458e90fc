"""Arrivals: hints find a queue's new streams at once, sweeps for certain.

A hint reads rows with new highest ids. It misses late commits, scheduled rows that came due, and revived ones. A
sweep looks at the head of each stream, in slices paced to a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from drain.admission.selection import Ahead
from drain.admission.sources import Source
from drain.admission.turns import Turns
from drain.tables import keyed
from drain.tables.keyed import Head

# Rows per hint; heads per slice.
_RECENT_LIMIT = 2000
_SLICE = 1000
# Pauses per duration.
_HINT_PAUSE = 4
_SWEEP_PAUSE = 9
_SHORTEST_SWEEP_PAUSE_SECONDS = 0.05
# Pause without known streams, unless a staged job wakes the leader.
_IDLE_SECONDS = 1.0


class Arrivals:
    """Finds a source's streams, and puts them into the order.

    Args:
        ahead: Rows found; dropped for a stream when an earlier row turns up.
        most: Streams known at a time.

    Attributes:
        is_first_sweep: Rows may wait that no sweep has reached.
    """

    def __init__(self, source: Source, turns: Turns, ahead: Ahead, most: int) -> None:
        self._source = source
        self._turns = turns
        self._ahead = ahead
        self._most = most
        self._last_id: int | None = None
        self.is_first_sweep = True
        self.is_between_sweeps = False
        self._hint_at = self._sweep_at = 0.0
        self._swept_at = 0.0

    @property
    def next_look_at(self) -> float:
        """Time by `monotonic()` of the next worthwhile slice."""
        if self._source.cursors or self.is_first_sweep or not self.is_between_sweeps:
            return self._sweep_at
        return max(self._sweep_at, self._swept_at + _IDLE_SECONDS)

    def look(self, *, hint: bool) -> None:
        """Run a hint and a slice, if due, in autocommit mode."""
        if hint and monotonic() >= self._hint_at:
            self.hint()
        began = monotonic()
        if began >= self._sweep_at:
            heads, self.is_between_sweeps = self._source.heads(_SLICE)
            self._notice(heads)
            self._swept_at = monotonic()
            self.is_first_sweep = self.is_first_sweep and not self.is_between_sweeps
            pause = max(_SHORTEST_SWEEP_PAUSE_SECONDS, _SWEEP_PAUSE * (self._swept_at - began))
            self._sweep_at = self._swept_at + (0.0 if self.is_first_sweep else pause)

    def begin_again(self) -> None:
        """Sweep at once, as at first."""
        self.is_first_sweep = True
        self._sweep_at = 0.0

    def hint(self, after: int | None = None) -> None:
        """Find rows above this id or the last hint's, in autocommit mode."""
        began = monotonic()
        if after is not None:
            self._last_id = max(after, self._last_id or 0)
        if self._last_id is None:
            self._last_id = keyed.last_id(self._source.connection)
            return
        self._notice(self._recent(self._last_id))
        self._hint_at = monotonic() + _HINT_PAUSE * (monotonic() - began)

    def _recent(self, after: int) -> list[Head]:
        source = self._source
        heads, self._last_id = keyed.recent(
            source.connection, source.queue, after, _RECENT_LIMIT, source.hinted
        )
        return heads

    def _notice(self, heads: Sequence[Head]) -> None:
        source, turns = self._source, self._turns
        for head in heads:
            is_known = source.stream(head) in source.cursors
            if not is_known and len(source.cursors) >= self._most:
                continue
            before = source.cursors.get(source.stream(head))
            stream, place = source.notice(head)
            found = self._ahead.get(stream)
            if before != source.cursors[stream] or (found and head[2:] < found[0][1]):
                self._ahead.pop(stream, None)
            # A known stream outside the order is blocked.
            if not is_known or stream in turns.waiting:
                turns.enter(stream, place)
