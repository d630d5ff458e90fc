"""Scan cursor: a scan of a lane begins at its start, or behind the rows drained before.

While some session holds an old snapshot, no vacuum removes drained rows, and a scan from the start of the index
steps over all of them: measured, 0.1 s for a million dead rows, where the rest of a batch takes 0.016 s. So while
more rows are due than fit into a batch, scans begin behind the last row that was drained. Such a scan does not see
rows before that place: a row whose transaction has committed late, or one that is more urgent. A *sweep*, which is a
scan from the start, finds those rows.

Without dead rows a sweep is as quick as any scan, and every scan is one. After a sweep that took longer than its
rows account for, the next sweep is put off, so that sweeps take a fiftieth of the time; but not beyond the first
scan that is not full. Only a sweep can find that nothing is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drain.enqueuer.pacer import Pacer
from drain.tables.staged import START, DueJob, Place

# Upper bounds of a sweep's duration without dead rows: for the scan itself, and for each of its rows.
_SCAN_SECONDS = 0.005
_ROW_SECONDS = 0.000_002


def excess(sweep_seconds: float, rows: int) -> float:
    """Time that a sweep took longer than its rows account for, in seconds; 0 or less without many dead rows."""
    return sweep_seconds - _SCAN_SECONDS - _ROW_SECONDS * rows


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of one scan of due rows.

    Attributes:
        rows: In the order of their places.
        is_full: More rows may be due behind the last one.
        sweep_seconds: Duration, if the scan was a sweep; else None.
    """

    rows: Sequence[DueJob]
    is_full: bool
    sweep_seconds: float | None = None


class ScanCursor:
    """Place behind which the next scan of a lane begins, unless that scan is a sweep."""

    def __init__(self) -> None:
        self.place: Place = START
        self._sweeps = Pacer()
        self._has_caught_up = True

    def sweep_is_due(self) -> bool:
        """Return True if the next scan should begin at the start of the lane."""
        return self._has_caught_up or self._sweeps.is_due()

    def advance(self, scan: Scan) -> None:
        """Move the place behind the last row of a scan whose batch has been committed.

        After a rollback the cursor must stay: the rows are still due.
        """
        self._has_caught_up = not scan.is_full
        if scan.rows:
            last = scan.rows[-1].place
            # A full sweep may end before the place where earlier scans have got to.
            self.place = last if scan.is_full else max(self.place, last)
        if scan.sweep_seconds is not None:
            self._sweeps.ran_for(excess(scan.sweep_seconds, len(scan.rows)))
