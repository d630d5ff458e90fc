"""How many jobs a worker takes at a time: as many as it is about to run within a moment."""

from __future__ import annotations

MOST = 500
# What is taken is to be begun within this time, going by how long jobs have lately run.
_AHEAD_SECONDS = 0.1
_WEIGHT = 0.1


class Prefetch:
    """Follows how long jobs take: one at a time for slow jobs, hundreds for fast ones.

    Args:
        fixed: Always so many.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._seconds = 0.0
        self._allowed = 1.0

    def ended(self, seconds: float) -> None:
        """A job has kept the worker busy for so long; one of 16 at once for a sixteenth of its time."""
        self._seconds += _WEIGHT * (seconds - self._seconds)
        # Twice as many as have been run, at most: the first jobs say little about those to come.
        self._allowed = min(MOST, self._allowed + 1)

    @property
    def size(self) -> int:
        """How many to take."""
        if self._fixed is not None:
            return self._fixed
        return max(1, min(int(self._allowed), int(_AHEAD_SECONDS / max(self._seconds, 1e-6))))
