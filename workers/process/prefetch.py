"""Number of jobs that a worker process fetches at a time."""

from __future__ import annotations

LARGEST = 500
# Fetched jobs should begin within this, by recent durations.
_AHEAD_SECONDS = 0.1
# Of the latest job in the average.
_WEIGHT = 0.1


class Prefetch:
    """Adapts to job durations, unless `fixed`: slow jobs singly, fast ones by the hundred."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._average_seconds = 0.0
        self._allowed = 1.0

    def observe(self, seconds: float) -> None:
        """Average the time per job; one of 16 at once counts a sixteenth."""
        self._average_seconds += _WEIGHT * (seconds - self._average_seconds)
        # First jobs say little about the next.
        self._allowed = min(LARGEST, self._allowed + 1)

    @property
    def size(self) -> int:
        """Jobs to fetch at a time."""
        if self._fixed is not None:
            return self._fixed
        return max(1, min(int(self._allowed), int(_AHEAD_SECONDS / max(self._average_seconds, 1e-6))))

    @property
    def low(self) -> int:
        """Number of waiting jobs at which more are fetched.

        A quarter: a claim costs 0.6 ms plus 6 us per job. Half if a quarter would run out before the answer.
        """
        size = self.size
        return size // 2 if self._fixed is not None or size == LARGEST else size // 4
