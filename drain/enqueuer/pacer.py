"""Spacing of periodic work of unknown duration."""

from __future__ import annotations

from time import monotonic

# Pause per duration: all kinds together leave nine tenths of the time to the drain.
_PAUSE_FACTOR = 50
_LONGEST_PAUSE_SECONDS = 60.0


class Pacer:
    """Spaces runs `every` seconds apart or more, using a fiftieth of the time unless one takes seconds."""

    def __init__(self, every: float = 0.0) -> None:
        self._every = every
        self._due_at = 0.0

    def is_due(self) -> bool:
        """Return whether a run is due, as the first is at once."""
        return monotonic() >= self._due_at

    def ran_for(self, seconds: float) -> None:
        """Postpone the next run; a negative duration counts as 0."""
        self._due_at = monotonic() + max(self._every, min(_PAUSE_FACTOR * seconds, _LONGEST_PAUSE_SECONDS))
