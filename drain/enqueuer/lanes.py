"""Lanes that are known to have rows, and a scan cursor for each; a search finds the others.

There are two groups. Applications stage with priorities up to 0 in passing, and every batch begins with the urgent
lanes; whatever stands in the patient ones, urgent rows never wait for a search of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from time import monotonic

from drain.database.postgres import Connection
from drain.enqueuer.cursor import Scan, ScanCursor, excess
from drain.enqueuer.pacer import Pacer
from drain.tables import lanes
from drain.tables.lanes import PATIENT, PATIENT_WITH_KEY, URGENT, URGENT_WITH_KEY, Head, Lane
from drain.tables.staged import START, DueJob, Place

URGENT_KINDS = (URGENT, URGENT_WITH_KEY)
PATIENT_KINDS = (PATIENT, PATIENT_WITH_KEY)

# Upper bound of the duration of a search without dead rows, for each lane that it finds.
_LANE_SECONDS = 0.000_05
# Upper bound of the lanes that one batch reads.
_MOST_LANES = 500


class LaneGroup:
    """Lanes of some kinds, on the leader's connection.

    Args:
        connection: The leader's, in a transaction whenever `search` or `scan` is called.
        kinds: Kinds of the lanes.
    """

    def __init__(self, connection: Connection, kinds: Sequence[int]) -> None:
        self._connection = connection
        self._kinds = kinds
        self._cursors: dict[Lane, ScanCursor] = {}
        self._searches = Pacer()
        self._was_slow = False

    @property
    def places(self) -> Mapping[Lane, Place]:
        """Each known lane, with the place behind which its rows wait; rows before it wait for a sweep."""
        return {lane: cursor.place for lane, cursor in self._cursors.items()}

    def search_is_due(self, room: Callable[[str], int]) -> bool:
        """Return True if lanes should be searched: none that is known has rows and room, or it is time."""
        return self._searches.is_due() or not any(room(lane.queue) for lane in self._cursors)

    @property
    def steps_over_many(self) -> bool:
        """True if the last search was slow: it stepped over many dead rows, or rows that nobody can see yet."""
        return self._was_slow

    def search(self, *others: LaneGroup) -> bool:
        """Find the lanes that have rows and are not known, of this group and of others, in one exchange.

        Returns:
            True if scheduled rows have come due, which are in no lane before they have matured.
        """
        groups = (self, *others)
        kinds = [kind for group in groups for kind in group._kinds]
        known = [lane for group in groups for lane in group._cursors]
        began = monotonic()
        found, has_scheduled = lanes.search(self._connection, kinds, known)
        late = excess(monotonic() - began - _LANE_SECONDS * len(found), 0)
        for group in groups:
            group._was_slow = late > 0
            group._searches.ran_for(late)
            group._cursors.update((lane, ScanCursor()) for lane in found if lane.kind in group._kinds)
        return has_scheduled

    def scan(
        self,
        most: int,
        room: Callable[[str], int],
        *,
        leave: Sequence[int],
        sweep: bool = False,
        skip_locked: bool,
    ) -> dict[Lane, Scan]:
        """Scan the lanes whose queues have room: up to `most` rows, and of each queue as many as it has room for.

        Lanes share the batch equally. Of two lanes of a queue the rows with the lower places are read. If `sweep`, all
        of these lanes are swept, otherwise those for which it is time.
        """
        heads, sweeps = self._choose(most, room, sweep=sweep)
        if not heads:
            return {}
        began = monotonic()
        found = lanes.read_due(self._connection, heads, leave=leave, skip_locked=skip_locked)
        seconds = monotonic() - began
        sizes = {head.lane: head.most for head in heads}
        return {
            lane: Scan(
                rows,
                is_full=len(rows) < len(found[lane]) or len(rows) == sizes[lane],
                sweep_seconds=seconds if lane in sweeps else None,
            )
            for lane, rows in _within_room(found, sizes)
        }

    def advance(self, scans: Mapping[Lane, Scan]) -> None:
        """Move the cursors behind the rows of these scans, whose batch has been committed."""
        for lane, scan in scans.items():
            cursor = self._cursors.pop(lane, None)
            if cursor is None:
                continue
            cursor.advance(scan)
            if scan.is_full or scan.sweep_seconds is None:
                # At the end of the lanes: each has its turn if there are more than a batch reads.
                self._cursors[lane] = cursor

    def _choose(self, most: int, room: Callable[[str], int], *, sweep: bool) -> tuple[list[Head], set[Lane]]:
        """Choose the lanes that are read, and those among them that are swept."""
        rooms = ((lane, room(lane.queue)) for lane in self._cursors)
        chosen = list(islice(((lane, size) for lane, size in rooms if size > 0), min(most, _MOST_LANES)))
        share = max(1, most // max(1, len(chosen)))
        sweeps = {lane for lane, _ in chosen if sweep or self._cursors[lane].sweep_is_due()}
        heads = [
            Head(lane, min(size, share), START if lane in sweeps else self._cursors[lane].place)
            for lane, size in chosen
        ]
        return heads, sweeps


def _within_room(
    found: Mapping[Lane, Sequence[DueJob]], sizes: Mapping[Lane, int]
) -> Iterable[tuple[Lane, Sequence[DueJob]]]:
    """Cut the rows of each queue to what one of its lanes may have: those with the lowest places."""
    queue_of = attrgetter("queue")
    for _, group in groupby(sorted(found, key=queue_of), queue_of):
        same = list(group)
        if len(same) == 1:
            yield same[0], found[same[0]]
            continue
        size = max(sizes[lane] for lane in same)
        together = list(merge(*(found[lane] for lane in same), key=attrgetter("place")))[:size]
        last = together[-1].place if together else None
        for lane in same:
            yield lane, [row for row in found[lane] if last is not None and row.place <= last]
