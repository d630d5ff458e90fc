"""Lanes with rows and their scan cursors.

Urgent lanes, with priorities up to 0, begin every batch and never wait for a search of patient lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from time import monotonic

from drain.database.postgres import Connection
from drain.enqueuer.crowd import MOST_FOUND, MOST_KNOWN, Crowd
from drain.enqueuer.cursor import Scan, ScanCursor, excess
from drain.enqueuer.pacer import Pacer
from drain.tables import lanes
from drain.tables.lanes import PATIENT, PATIENT_WITH_KEY, URGENT, URGENT_WITH_KEY, Found, Head, Lane
from drain.tables.staged import START, DueJob, Place

URGENT_KINDS = (URGENT, URGENT_WITH_KEY)
PATIENT_KINDS = (PATIENT, PATIENT_WITH_KEY)

# Longest search without dead rows, per lane.
_LANE_SECONDS = 0.000_05
# Lanes per statement.
_MOST_LANES = 1000


class LaneGroup:
    """Lanes of some kinds, searched and scanned in a leader's transaction.

    Attributes:
        leaves_lanes: More lanes had room than the last scan read.
    """

    # One thing: lanes from search to scan.

    def __init__(self, connection: Connection, kinds: Sequence[int]) -> None:
        self._connection = connection
        self._kinds = kinds
        self._cursors: dict[Lane, ScanCursor] = {}
        self._searches = Pacer()
        self._was_slow = False
        self.leaves_lanes = False
        self.crowd = Crowd(connection, kinds)

    @property
    def places(self) -> Mapping[Lane, Place]:
        """Known lanes, and the place behind which rows wait; others await a sweep."""
        return {lane: cursor.place for lane, cursor in self._cursors.items()}

    def search_is_due(self, room: Callable[[str], int]) -> bool:
        """Return whether no known lane has rows and room, or a search is due."""
        return (
            bool(self.crowd) or self._searches.is_due() or not any(room(lane.queue) for lane in self._cursors)
        )

    @property
    def steps_over_many(self) -> bool:
        """True if dead or invisible rows slowed the last search."""
        return self._was_slow

    def search(self, *others: LaneGroup) -> Found:
        """Find unknown lanes of these groups in one round trip; in a crowd, the next."""
        groups = (self, *others)
        quiet = [group for group in groups if not group.crowd]
        kinds = [kind for group in quiet for kind in group._kinds]
        known = [lane for group in quiet for lane in group._cursors]
        began = monotonic()
        found = lanes.search(self._connection, kinds, known, MOST_FOUND)
        in_crowds = [lane for group in groups if group.crowd for lane in group._join_crowd()]
        number = len(found.first_rows) + len(in_crowds)
        late = excess(monotonic() - began - _LANE_SECONDS * number, 0)
        for group in quiet:
            group._add(
                [lane for lane in found.first_rows if lane.kind in group._kinds], len(found.first_rows)
            )
        for group in groups:
            group._was_slow = late > 0
            group._searches.ran_for(late)
        return found

    def _add(self, found: Sequence[Lane], in_all: int) -> None:
        self._cursors.update((lane, ScanCursor()) for lane in found)
        if in_all == MOST_FOUND:
            self.crowd.begin()
        else:
            self.crowd.remember(found)

    def _join_crowd(self) -> Sequence[Lane]:
        familiar, others = self.crowd.find()
        self._cursors = _joined(self._cursors, familiar, others)
        return [*familiar, *others]

    def forget(self, queues: Collection[str]) -> None:
        """Forget lanes until a search finds them."""
        self._cursors = {lane: each for lane, each in self._cursors.items() if lane.queue not in queues}

    def scan(
        self,
        most: int,
        room: Callable[[str], int],
        *,
        leave: Sequence[int],
        sweep: bool = False,
        skip_locked: bool,
        first_rows: Mapping[Lane, Sequence[DueJob]],
    ) -> dict[Lane, Scan]:
        """Scan for up to `most` rows, and per queue as many as `room` returns.

        Lanes share the batch equally; of two lanes of a queue, the lower places are read.

        Args:
            leave: Ids to skip.
            sweep: Sweep all lanes, not only those due for it.
            first_rows: From a search in this transaction.
        """
        rooms = ((lane, size) for lane in self._cursors if (size := room(lane.queue)) > 0)
        read = partial(self._read, leave=leave, sweep=sweep, skip_locked=skip_locked, first_rows=first_rows)
        scans: dict[Lane, Scan] = {}
        # A statement's worth of empty known lanes must not hide rows of others.
        while chosen := list(islice(rooms, min(most, _MOST_LANES))):
            scans |= read(chosen, max(1, most // len(chosen)))
            if any(scan.rows for scan in scans.values()):
                break
        self.leaves_lanes = next(rooms, None) is not None
        return scans

    def advance(self, scans: Mapping[Lane, Scan]) -> None:
        """Move the cursors after the commit."""
        for lane, scan in scans.items():
            cursor = self._cursors.pop(lane, None)
            if cursor is None:
                continue
            cursor.advance(scan)
            if scan.is_full or scan.sweep_seconds is None:
                # To the end, so that each lane gets its turn.
                self._cursors[lane] = cursor

    def _read(
        self,
        rooms: Sequence[tuple[Lane, int]],
        share: int,
        *,
        leave: Sequence[int],
        sweep: bool,
        skip_locked: bool,
        first_rows: Mapping[Lane, Sequence[DueJob]],
    ) -> dict[Lane, Scan]:
        sweeps = {lane for lane, _ in rooms if sweep or self._cursors[lane].sweep_is_due()}
        heads = [
            Head(lane, min(size, share), START if lane in sweeps else self._cursors[lane].place)
            for lane, size in rooms
        ]
        began = monotonic()
        found = _all_of(heads, first_rows, leave)
        others = [head for head in heads if head.lane not in found]
        if others:
            found |= lanes.read_due(self._connection, others, leave=leave, skip_locked=skip_locked)
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


def _joined(
    known: Mapping[Lane, ScanCursor], first: Sequence[Lane], last: Sequence[Lane]
) -> dict[Lane, ScanCursor]:
    cursors = {lane: known.get(lane) or ScanCursor() for lane in (*first, *known, *last)}
    too_many = max(0, len(cursors) - MOST_KNOWN)
    for lane in list(cursors)[len(first) : len(first) + too_many]:
        del cursors[lane]
    return cursors


def _all_of(
    heads: Iterable[Head], first_rows: Mapping[Lane, Sequence[DueJob]], leave: Sequence[int]
) -> dict[Lane, list[DueJob]]:
    """Return lanes without more than their first rows."""
    return {
        head.lane: [row for row in rows if row.id not in leave][: head.most]
        for head in heads
        if 0 < len(rows := first_rows.get(head.lane, ())) < lanes.FIRST_ROWS
    }


def _within_room(
    found: Mapping[Lane, Sequence[DueJob]], sizes: Mapping[Lane, int]
) -> Iterable[tuple[Lane, Sequence[DueJob]]]:
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
