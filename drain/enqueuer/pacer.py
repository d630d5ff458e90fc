"""How often to do what may turn out to be slow."""

from __future__ import annotations

from time import monotonic

# Several are spaced out like this, and all together are to leave the rest nine tenths of the time.
_TIMES = 50
_LONGEST_SECONDS = 60.0


class Pace:
    """Spaces something out so that it takes a fiftieth of the time, unless it takes seconds each time.

    Args:
        every: The shortest time from one to the next, in seconds.
    """

    def __init__(self, every: float = 0.0) -> None:
        self._every = every
        self._due_at = 0.0

    def is_due(self) -> bool:
        """Whether it is time for the next one; the first one is due at once."""
        return monotonic() >= self._due_at

    def took(self, seconds: float) -> None:
        """Put the next one off. Less than nothing counts as nothing."""
        self._due_at = monotonic() + max(self._every, min(_TIMES * seconds, _LONGEST_SECONDS))
