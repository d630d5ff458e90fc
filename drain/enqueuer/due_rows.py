"""Due rows of the next batch: urgent ones, then patient ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import chain, takewhile
from operator import attrgetter
from time import monotonic
from typing import Self

from drain.admission.admission import Admission
from drain.database.postgres import Connection
from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.cursor import Scan
from drain.enqueuer.lanes import PATIENT_KINDS, URGENT_KINDS, LaneGroup
from drain.failpoints import FailurePoint, failpoint
from drain.tables import staged
from drain.tables.lanes import Lane
from drain.tables.staged import DueJob, Place

# Rows that mature per batch: more than it holds, so that their priorities count.
_MATURE_LIMIT = 10_000
# Patient rows in every other batch while urgent rows arrive and wait for that push.
_BESIDE_URGENT = 250
_URGENT_SECONDS = 1.0
# Stands for a queue with rules.
_RULED = -1
# Pause of a refused queue's forwarded jobs.
_REFUSED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of a batch; those `ruled` by queue, in order of release."""

    scans: Mapping[Lane, Scan]
    ruled: Mapping[str, Sequence[DueJob]]
    rows: Sequence[DueJob]

    @classmethod
    def of(cls, scans: Mapping[Lane, Scan], ruled: Mapping[str, Sequence[DueJob]]) -> Self:
        """Select all."""
        in_lanes = [scan.rows for scan in scans.values() if scan.rows]
        if not ruled and len(in_lanes) == 1:
            return cls(scans, ruled, in_lanes[0])
        in_order = merge(*in_lanes, key=attrgetter("place"))
        return cls(scans, ruled, [*chain.from_iterable(ruled.values()), *in_order])

    @property
    def lanes(self) -> Collection[Lane]:
        """Scanned lanes; one per queue with rules."""
        return [*self.scans, *(Lane(_RULED, queue) for queue in self.ruled)]

    def before(self, job_id: int) -> Self:
        """Select the rows before this one, as if scans had ended there."""
        kept = set(takewhile(lambda id_: id_ != job_id, (row.id for row in self.rows)))
        ruled = {queue: [row for row in rows if row.id in kept] for queue, rows in self.ruled.items()}
        return self.of({lane: _cut(scan, kept) for lane, scan in self.scans.items()}, ruled)


def _cut(scan: Scan, kept: Collection[int]) -> Scan:
    rows = [row for row in scan.rows if row.id in kept]
    if len(rows) == len(scan.rows):
        return scan
    # The sweep's duration is for all its rows.
    return Scan(rows, is_full=True, sweep_seconds=None if not rows else scan.sweep_seconds)


def _less(room: Callable[[str], int], scans: Mapping[Lane, Scan]) -> Callable[[str], int]:
    taken: Counter[str] = Counter()
    for lane, scan in scans.items():
        taken[lane.queue] += len(scan.rows)
    return lambda queue: max(0, room(queue) - taken[queue])


class RefusedQueues:
    """Refused queues, whose forwarded jobs are skipped for some seconds."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, queues: Iterable[str]) -> None:
        """Skip queues for a while."""
        self._until.update(dict.fromkeys(queues, monotonic() + _REFUSED_SECONDS))

    def excluded_from(self, room: Callable[[str], int]) -> Callable[[str], int]:
        """Return a room function without them."""
        if not self._until:
            return room
        now = monotonic()
        self._until = {queue: until for queue, until in self._until.items() if until > now}
        refused = frozenset(self._until)
        return lambda queue: 0 if queue in refused else room(queue)


class DueRows:
    """Reads due rows on the leader's connection, in a transaction.

    Attributes:
        awaits_bulk: Patient rows stay unread during a bulk transaction, whose rows scans would step over.
    """

    # One thing: the shares of a batch.

    def __init__(
        self,
        connection: Connection,
        size: AdaptiveBatchSize,
        alive: Callable[[], None],
        admission: Admission,
    ) -> None:
        self.awaits_bulk = False
        self._connection = connection
        self._size = size
        self._alive = alive
        self._admission = admission
        self._alternate = self._has_searched = False
        self._urgent, self._patient = (
            LaneGroup(connection, URGENT_KINDS),
            LaneGroup(connection, PATIENT_KINDS),
        )
        self._urgent_until = 0.0
        self._only_urgent = False
        self._passed_over: list[int] = []
        self.refused = RefusedQueues()
        # Of the last selection: unread rows, and queues with more.
        self._has_unread = True
        self._full: set[str] = set()

    @property
    def may_leave_some(self) -> bool:
        """True if due rows with room may be left."""
        return self._has_unread or any(map(self._admission.room, self._full))

    @property
    def places(self) -> Mapping[Lane, Place]:
        """See `LaneGroup.places`."""
        return self._urgent.places if self.awaits_bulk else {**self._urgent.places, **self._patient.places}

    @property
    def lanes(self) -> Collection[Lane]:
        """Lanes that may have the failing row."""
        return [*self.places, *(Lane(_RULED, queue) for queue in self._admission.awake)]

    def pass_over_row(self, job_id: int) -> None:
        """Exclude a row."""
        self._passed_over.append(job_id)

    def select(self, *, skip_locked: bool) -> Selection:
        """Select rows, if any may leave; `skip_locked` locks those read."""
        most = self._size.rows
        if asleep := self._admission.take_fallen_asleep():
            self._urgent.forget(asleep)
            self._patient.forget(asleep)
        self._has_unread, self._full = True, set()
        # Half each, so that neither kind delays the other; a reduced batch has one kind, to find a failing row.
        self._alternate = not self._alternate
        share = (most if self._alternate else 0) if self._size.is_reduced else max(1, most // 2)
        ruled = self._select_ruled(share, skip_locked=skip_locked)
        left = 0 if self._size.is_reduced and ruled else most - sum(map(len, ruled.values()))
        scans = self._scan_lanes(left, skip_locked=skip_locked) if left else {}
        selection = Selection.of(scans, ruled)
        self._has_unread |= sum(map(len, ruled.values())) >= share
        if share or selection.rows:
            return selection
        return Selection.of(scans, self._select_ruled(most, skip_locked=skip_locked))

    def _select_ruled(self, most: int, *, skip_locked: bool) -> Mapping[str, Sequence[DueJob]]:
        return self._admission.select(most, skip_locked=skip_locked, leave=self._passed_over) if most else {}

    def _scan_lanes(self, most: int, *, skip_locked: bool) -> Mapping[Lane, Scan]:
        scans = self._scan_groups(most, thorough=False, skip_locked=skip_locked)
        was_thorough = self._has_searched and all(scan.sweep_seconds is not None for scan in scans.values())
        if was_thorough or any(scan.rows for scan in scans.values()):
            return scans
        return self._scan_groups(most, thorough=True, skip_locked=skip_locked)

    def _scan_groups(self, most: int, *, thorough: bool, skip_locked: bool) -> Mapping[Lane, Scan]:
        room = self.refused.excluded_from(self._admission.room)
        searched = False
        first_rows: dict[Lane, Sequence[DueJob]] = {}
        self._has_searched = thorough or self._urgent.search_is_due(room)
        if self._has_searched:
            # Together, unless urgent rows would wait for patient ones.
            searched = (thorough or self._patient.search_is_due(room)) and not self._patient.steps_over_many
            others = [self._patient] if searched else []
            first_rows |= self._search(self._urgent, *others)
        # Rows read unlocked may be locked elsewhere.
        known = {} if skip_locked else first_rows
        scan = partial(LaneGroup.scan, leave=self._passed_over, skip_locked=skip_locked, first_rows=known)
        urgent = scan(self._urgent, most, room, sweep=thorough)
        left = self._left_for_patient(found := sum(len(scan.rows) for scan in urgent.values()), most)
        if found and self._size.is_reduced and not self._only_urgent:
            # Separate: a stream of urgent rows could hide a failing one.
            left = min(most, _BESIDE_URGENT)
        patient: Mapping[Lane, Scan] = {}
        if left:
            is_due = not searched and (thorough or self._patient.search_is_due(room))
            first_rows |= self._search_patient(is_due)
            searched |= is_due
            sweep = thorough and not self.awaits_bulk
            patient = scan(self._patient, left, _less(room, urgent), sweep=sweep)
        has_read_patient = (left > 0 and not self._patient.leaves_lanes) or not self._patient.places
        has_read_urgent = not self._urgent.leaves_lanes and not self._urgent.crowd
        has_read_patient = has_read_patient and not self._patient.crowd
        has_read_all = self._has_searched and searched and has_read_patient and has_read_urgent
        scans = {**urgent, **patient}
        are_sweeps = all(scan.sweep_seconds is not None for scan in scans.values())
        self._has_unread = self._size.is_reduced or not has_read_all or not are_sweeps
        self._full = {lane.queue for lane, scan in scans.items() if scan.is_full}
        if self._size.is_reduced and any(scan.rows for scan in patient.values()):
            urgent = {}
        return {**urgent, **patient}

    def advance(self, selection: Selection, gone: Iterable[int]) -> None:
        """Move the cursors after the commit; `gone` rows are in flight or pushed."""
        if selection.ruled:
            self._admission.admitted(selection.ruled, set(gone))
        for group, kinds in ((self._urgent, URGENT_KINDS), (self._patient, PATIENT_KINDS)):
            group.advance({lane: scan for lane, scan in selection.scans.items() if lane.kind in kinds})

    def _left_for_patient(self, urgent: int, most: int) -> int:
        now = monotonic()
        left = most - urgent
        if urgent:
            self._urgent_until = now + _URGENT_SECONDS
            self._only_urgent = not self._only_urgent
        if now < self._urgent_until:
            left = 0 if urgent and self._only_urgent else min(left, _BESIDE_URGENT)
        return left

    def _search(self, group: LaneGroup, *others: LaneGroup) -> Mapping[Lane, Sequence[DueJob]]:
        found = group.search(*others)
        if not found.has_scheduled:
            return found.first_rows
        staged.mature(self._connection, self._size.rows if self._size.is_reduced else _MATURE_LIMIT)
        self._alive()
        failpoint(FailurePoint.MATURED)
        # Any lane may have more now.
        group.search(*others)
        return {}

    def _search_patient(self, is_due: bool) -> Mapping[Lane, Sequence[DueJob]]:  # noqa: FBT001
        group = self._patient
        self.awaits_bulk = is_due and group.steps_over_many and staged.is_bulk_under_way(self._connection)
        return group.search().first_rows if is_due and not self.awaits_bulk else {}
