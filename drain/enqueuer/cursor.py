"""Scan cursor: a scan of a lane begins at its start, or behind the rows drained before.

While a session holds an old snapshot, vacuum keeps drained rows, and a scan from the start steps over them: measured,
0.1 s for a million, when the rest of a batch takes 0.016 s. So while more rows are due than fit into a batch, scans
begin behind the last drained row. They miss rows before it, committed late or more urgent, which a *sweep*, a scan
from the start, finds.

Without dead rows every scan is a sweep. A slow sweep postpones the next, so that sweeps take a fiftieth of the time,
but no longer than until a scan is not full: only a sweep can tell that nothing is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drain.enqueuer.pacer import Pacer
from drain.tables.staged import START, DueJob, Place

# Longest sweep without dead rows: for the scan, and for each row.
_SCAN_SECONDS = 0.005
_ROW_SECONDS = 0.000_002


def excess(sweep_seconds: float, rows: int) -> float:
    """Return seconds beyond what a sweep's rows account for; positive with many dead rows."""
    return sweep_seconds - _SCAN_SECONDS - _ROW_SECONDS * rows


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of a scan of due rows.

    Attributes:
        is_full: More rows may follow.
        sweep_seconds: Duration, if it was a sweep.
    """

    rows: Sequence[DueJob]
    is_full: bool
    sweep_seconds: float | None = None


class ScanCursor:
    """Place behind which the next scan of a lane begins, unless it is a sweep."""

    def __init__(self) -> None:
        self.place: Place = START
        self._sweeps = Pacer()
        self._has_caught_up = True

    def sweep_is_due(self) -> bool:
        """Return True if the next scan should be a sweep."""
        return self._has_caught_up or self._sweeps.is_due()

    def advance(self, scan: Scan) -> None:
        """Move behind the rows of a scan whose batch was committed; not after a rollback."""
        self._has_caught_up = not scan.is_full
        if scan.rows:
            last = scan.rows[-1].place
            # A full sweep may end before earlier scans did.
            self.place = last if scan.is_full else max(self.place, last)
        if scan.sweep_seconds is not None:
            self._sweeps.ran_for(excess(scan.sweep_seconds, len(scan.rows)))
