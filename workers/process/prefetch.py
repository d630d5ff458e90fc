"""The number of jobs that a worker process fetches at a time: those that it is about to run within a moment."""

from __future__ import annotations

# Upper bound of the number of jobs fetched at a time.
LARGEST = 500
# Time within which the fetched jobs are expected to begin, going by the durations of recent jobs.
_AHEAD_SECONDS = 0.1
# Weight of the latest job in the moving average of durations.
_WEIGHT = 0.1


class Prefetch:
    """Adapts to the durations of jobs: fetches slow jobs one at a time, fast jobs by the hundred.

    Args:
        fixed: A constant size; None to adapt.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._average_seconds = 0.0
        self._allowed = 1.0

    def observe(self, seconds: float) -> None:
        """Note for how long a job occupied the worker; one of 16 that ran at once counts a sixteenth of its time."""
        self._average_seconds += _WEIGHT * (seconds - self._average_seconds)
        # At most twice as many as have been run: the first jobs say little about the next ones.
        self._allowed = min(LARGEST, self._allowed + 1)

    @property
    def size(self) -> int:
        """Number of jobs to fetch at a time."""
        if self._fixed is not None:
            return self._fixed
        return max(1, min(int(self._allowed), int(_AHEAD_SECONDS / max(self._average_seconds, 1e-6))))

    @property
    def low(self) -> int:
        """Number of waiting jobs from which on more are fetched.

        A quarter: a claim costs the fetcher 0.6 ms of processor time, and 6 microseconds for each job. Half if jobs run
        so fast that a quarter would have run before the claim is answered.
        """
        size = self.size
        return size // 2 if self._fixed is not None or size == LARGEST else size // 4
