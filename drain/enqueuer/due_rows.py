"""Due rows for the next batch: urgent ones first, then as many patient ones as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Self

from drain.database.postgres import Connection
from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.cursor import PATIENT, URGENT, Scan, ScanCursor
from drain.failpoints import FailurePoint, failpoint
from drain.tables import staged
from drain.tables.staged import DueJob, Key

# Upper bound of the scheduled rows that mature with one batch: more than the batch holds, so that their priorities
# count.
_MATURE_LIMIT = 10_000
# Patient rows in a batch while urgent rows come in; every other batch has none. What is staged meanwhile waits until
# they have been pushed.
_BESIDE_URGENT = 250
# Time after the last urgent row for which that holds.
_URGENT_SECONDS = 1.0
# Pause before forwarded jobs of a queue that Redis has refused are read again.
_REFUSED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of one batch, and the scans that found them."""

    scans: Mapping[ScanCursor, Scan]
    rows: Sequence[DueJob]

    @classmethod
    def of(cls, scans: Mapping[ScanCursor, Scan]) -> Self:
        """Select all rows of these scans, in the order of the scans."""
        return cls(scans, [row for scan in scans.values() for row in scan.rows])

    def before(self, job_id: int) -> Self:
        """Select the rows before this one, as if no scan had read any further."""
        left = next(place for place, row in enumerate(self.rows) if row.id == job_id)
        kept: dict[ScanCursor, Scan] = {}
        for cursor, scan in self.scans.items():
            if len(scan.rows) > left:
                kept[cursor] = replace(scan, rows=scan.rows[:left], is_full=True)
                break
            kept[cursor] = scan
            left -= len(scan.rows)
        return self.of(kept)

    def advance_cursors(self) -> None:
        """Move the cursors behind these rows, whose batch has been committed."""
        for cursor, scan in self.scans.items():
            cursor.advance(scan)


class DueRows:
    """Reads due rows on the leader's connection.

    Args:
        connection: The leader's, in a transaction whenever `select` is called.
        size: Upper bound of the rows of a batch.
        alive: Called between statements.

    Attributes:
        awaits_bulk: True if patient rows are left unread: a transaction that stages more of them by the million is
            open, and scans would step over its rows.
    """

    def __init__(self, connection: Connection, size: AdaptiveBatchSize, alive: Callable[[], None]) -> None:
        self.awaits_bulk = False
        self._connection = connection
        self._size = size
        self._alive = alive
        self._urgent, self._patient = ScanCursor(URGENT), ScanCursor(PATIENT)
        self._urgent_until = 0.0
        self._only_urgent = False
        self._passed_over: list[int] = []
        # Refused queues, and until when their forwarded jobs are passed over.
        self._refused_until: dict[str, float] = {}

    @property
    def cursors(self) -> list[ScanCursor]:
        """Cursor of each range that is read at present."""
        return [self._urgent] if self.awaits_bulk else [self._urgent, self._patient]

    def pass_over_row(self, job_id: int) -> None:
        """Leave this row out of all selections from now on."""
        self._passed_over.append(job_id)

    def pass_over_queues(self, queues: Iterable[str]) -> None:
        """Leave the rows of these queues out of selections for some seconds."""
        self._refused_until.update(dict.fromkeys(queues, monotonic() + _REFUSED_SECONDS))

    def select(self, *, skip_locked: bool) -> Selection:
        """Select the rows of the next batch; none are due if the selection is empty.

        Args:
            skip_locked: Pass over rows that another session has locked. Each row that is read is locked then.
        """
        urgent = self._scan(self._urgent, self._size.rows, skip_locked=skip_locked)
        scans = {self._urgent: urgent}
        now = monotonic()
        room = self._size.rows - len(urgent.rows)
        if urgent.rows:
            self._urgent_until = now + _URGENT_SECONDS
            self._only_urgent = not self._only_urgent
        if urgent.rows and self._size.is_reduced and not self._only_urgent:
            # Each range by itself: a row that spoils batches could otherwise hide behind urgent ones that keep coming.
            scans, room = {}, self._size.rows
        if now < self._urgent_until:
            room = 0 if urgent.rows and self._only_urgent else min(room, _BESIDE_URGENT)
        self.awaits_bulk = self._patient.steps_over_many() and staged.is_bulk_under_way(self._connection)
        if room and not self.awaits_bulk:
            patient = self._scan(self._patient, room, skip_locked=skip_locked)
            scans = (scans if patient.rows else {self._urgent: urgent}) | {self._patient: patient}
        return Selection.of(scans or {self._urgent: urgent})

    def _scan(self, cursor: ScanCursor, most: int, *, skip_locked: bool) -> Scan:
        """Scan a range from its cursor; or sweep it, if a sweep is due or nothing is due behind the cursor."""
        if not cursor.sweep_is_due():
            rows = self._read(cursor.key, cursor.range.up_to, most, skip_locked=skip_locked)
            if rows:
                return Scan(rows, is_full=len(rows) == most)
        began = monotonic()
        if cursor is self._urgent:
            staged.mature(self._connection, self._size.rows if self._size.is_reduced else _MATURE_LIMIT)
            self._alive()
            failpoint(FailurePoint.MATURED)
        rows = self._read(cursor.range.after, cursor.range.up_to, most, skip_locked=skip_locked)
        return Scan(rows, is_full=len(rows) == most, sweep_seconds=monotonic() - began)

    def _read(self, after: Key, up_to: int, most: int, *, skip_locked: bool) -> Sequence[DueJob]:
        return staged.read_due(
            self._connection,
            most,
            after=after,
            up_to=up_to,
            leave=self._passed_over,
            leave_queues=self._refused_queues(),
            skip_locked=skip_locked,
        )

    def _refused_queues(self) -> Sequence[str]:
        if not self._refused_until:
            return ()
        now = monotonic()
        self._refused_until = {queue: until for queue, until in self._refused_until.items() if until > now}
        return list(self._refused_until)
