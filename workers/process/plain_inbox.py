"""Running and next plain RQ jobs."""

from __future__ import annotations

from collections import deque

from drain.workers.process.jobs import PendingJob
from drain.workers.process.shutdown import Shutdown

# The RQ process need not wait for the fetcher.
_AHEAD = 1


class PlainInbox:
    """Buffer between the fetcher and `PlainJobs`' thread; without locks, like `Inbox`."""

    def __init__(self, shutdown: Shutdown) -> None:
        self.ran = 0
        self.added = shutdown.new_wakeup()
        self._waiting: deque[PendingJob] = deque()
        self._running: PendingJob | None = None
        # As in `Inbox`.
        self._is_stuck = False

    @property
    def is_full(self) -> bool:
        """True if no jobs are wanted now."""
        return len(self._waiting) >= _AHEAD or (self._is_stuck and self._running is not None)

    @property
    def waiting_count(self) -> int:
        """Waiting jobs."""
        return len(self._waiting)

    def add(self, job: PendingJob) -> None:
        """Let a job run."""
        self._waiting.append(job)
        self.added.notify()

    def begin_next(self) -> PendingJob | None:
        """Start the next job."""
        try:
            job = self._waiting.popleft()
        except IndexError:
            return None
        self._running = job
        return job

    def end(self) -> None:
        """End the running job."""
        self._running = None
        self._is_stuck = False
        self.ran += 1

    def withdraw(self, waiting_since: float) -> list[PendingJob]:
        """Withdraw jobs waiting since then; want none until one ends."""
        found: list[PendingJob] = []
        # Only this thread adds jobs; the other may take them.
        for job in list(self._waiting):
            if job.waits_since <= waiting_since:
                try:
                    self._waiting.remove(job)
                except ValueError:
                    continue
                found.append(job)
        self._is_stuck |= bool(found)
        return found
