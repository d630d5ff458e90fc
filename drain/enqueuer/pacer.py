"""Spacing of periodic work whose duration is not known in advance."""

from __future__ import annotations

from time import monotonic

# Pause after a run, as a multiple of its duration. Several kinds of work are spaced like this, and all together they
# leave nine tenths of the time to the drain.
_PAUSE_FACTOR = 50
# Upper bound of that pause.
_LONGEST_PAUSE_SECONDS = 60.0


class Pacer:
    """Spaces runs of some work so that it takes a fiftieth of the time, unless one run takes seconds.

    Args:
        every: Shortest time between two runs, in seconds.
    """

    def __init__(self, every: float = 0.0) -> None:
        self._every = every
        self._due_at = 0.0

    def is_due(self) -> bool:
        """Return True if it is time for the next run; the first run is due at once."""
        return monotonic() >= self._due_at

    def ran_for(self, seconds: float) -> None:
        """Postpone the next run, by what the last run took; a negative duration counts as 0."""
        self._due_at = monotonic() + max(self._every, min(_PAUSE_FACTOR * seconds, _LONGEST_PAUSE_SECONDS))
