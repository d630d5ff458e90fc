"""Scan cursor: a scan of the staged rows begins at the start of its range, or behind the rows drained before.

While some session holds an old snapshot, no vacuum removes drained rows, and a scan from the start of the index
steps over all of them: measured, 0.1 s for a million dead rows, where the rest of a batch takes 0.016 s. So while
more rows are due than fit into a batch, scans begin behind the last row that was drained. Such a scan does not see
rows before that key: a row whose transaction has committed late, or one that is more urgent. A *sweep*, which is a
scan from the start, finds those rows.

Without dead rows a sweep is as quick as any scan, and every scan is one. After a sweep that took longer than its
rows account for, the next sweep is put off, so that sweeps take a fiftieth of the time; but not beyond the first
scan that is not full. Only a sweep can find that nothing is due.

There are two ranges, with a cursor each. Applications stage with priorities up to 0 in passing, and every batch
begins with a scan of that range; whatever stands in the other range, urgent rows never wait for a sweep of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drain.enqueuer.pacer import Pacer
from drain.tables.staged import LAST_PRIORITY, START, DueJob, Key

# Upper bounds of a sweep's duration without dead rows: for the scan itself, and for each of its rows.
_SCAN_SECONDS = 0.005
_ROW_SECONDS = 0.000_002


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Range of keys: those behind `after`, as far as all keys of the priority `up_to`."""

    after: Key
    up_to: int


URGENT = KeyRange(START, 0)
PATIENT = KeyRange((0, 2**63 - 1), LAST_PRIORITY)


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of one scan of due rows.

    Attributes:
        rows: In the order of their keys.
        is_full: More rows may be due behind the last one.
        sweep_seconds: Duration, if the scan was a sweep; else None.
    """

    rows: Sequence[DueJob]
    is_full: bool
    sweep_seconds: float | None = None


class ScanCursor:
    """Key behind which the next scan of a range begins, unless that scan is a sweep."""

    def __init__(self, range_: KeyRange = URGENT) -> None:
        self.range = range_
        self.key: Key = range_.after
        self._sweeps = Pacer()
        self._has_caught_up = True
        self._was_slow = False

    def sweep_is_due(self) -> bool:
        """Return True if the next scan should begin at the start of the range."""
        return self._has_caught_up or self._sweeps.is_due()

    def steps_over_many(self) -> bool:
        """Return True if the next scan is a sweep and the last sweep was slow: it stepped over many dead rows."""
        return self._has_caught_up and self._was_slow

    def advance(self, scan: Scan) -> None:
        """Move the key behind the last row of a scan whose batch has been committed.

        After a rollback the cursor must stay: the rows are still due.
        """
        self._has_caught_up = not scan.is_full
        if scan.rows:
            last = scan.rows[-1].place
            # A full sweep may end before the key where earlier scans have got to.
            self.key = last if scan.is_full else max(self.key, last)
        if scan.sweep_seconds is not None:
            excess = scan.sweep_seconds - _SCAN_SECONDS - _ROW_SECONDS * len(scan.rows)
            self._was_slow = excess > 0
            self._sweeps.ran_for(excess)
