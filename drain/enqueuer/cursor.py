"""Where the enqueuer begins to read: at the very start, or behind what it has taken.

While some session holds an old snapshot, no vacuum removes what was drained, and who reads the index from
its start steps over all of it: measured, 0.1 s for a million dead rows, where the rest of a batch takes
0.016 s. So while there is more to be taken than fits into a batch, looks begin behind the last row that was
taken. They do not see what stands before it: a row whose transaction has committed late, or one that is more
urgent. Those are found by a *sweep*, a look from the start.

Without dead rows a sweep is as quick as any look, and every look is one. After one that took longer than
its rows account for, the next is put off, so that sweeps take a fiftieth of the time; but not beyond the
first look that is not full. That nothing is due can be learnt from a sweep alone.

There are two ranges, and a bound in each. Priorities up to 0 are what applications stage in passing, and every
batch begins with a look at them; whatever stands in the other range, they never wait for a sweep of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drain.enqueuer.pacer import Pace
from drain.tables.staged import LAST_PRIORITY, START, DueJob, Key

# What a sweep without dead rows takes at most.
_LOOK_SECONDS = 0.005
_ROW_SECONDS = 0.000_002


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of keys: behind `after`, and up to and with all of the priority `up_to`."""

    after: Key
    up_to: int


URGENT = KeyRange(START, 0)
PATIENT = KeyRange((0, 2**63 - 1), LAST_PRIORITY)


@dataclass(frozen=True, slots=True)
class Scan:
    """What one look at the ready rows has found.

    Attributes:
        rows: In the order of their keys.
        is_full: There may be more of them behind the last one.
        sweep_seconds: How long it took, if it was a sweep; None if it was not.
    """

    rows: Sequence[DueJob]
    is_full: bool
    sweep_seconds: float | None = None


class ScanCursor:
    """The key behind which the next look at a range begins, and whether it should rather be a sweep."""

    def __init__(self, range_: KeyRange = URGENT) -> None:
        self.range = range_
        self.key: Key = range_.after
        self._sweeps = Pace()
        self._has_caught_up = True
        self._was_slow = False

    def sweep_is_due(self) -> bool:
        """Whether the next look should begin at the start."""
        return self._has_caught_up or self._sweeps.is_due()

    def steps_over_many(self) -> bool:
        """Whether the next look is a sweep, and the last one was slow: many rows stand there that it cannot take."""
        return self._has_caught_up and self._was_slow

    def passed(self, look: Scan) -> None:
        """Go on from the end of a look whose rows are gone for good.

        To be called after the commit: rows of a batch that was rolled back are still before the bound.
        """
        self._has_caught_up = not look.is_full
        if look.rows:
            last = look.rows[-1].key
            # A sweep that is full has not come as far as the bound yet.
            self.key = last if look.is_full else max(self.key, last)
        if look.sweep_seconds is not None:
            too_long = look.sweep_seconds - _LOOK_SECONDS - _ROW_SECONDS * len(look.rows)
            self._was_slow = too_long > 0
            self._sweeps.took(too_long)
