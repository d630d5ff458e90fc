"""Plain RQ jobs of one worker process: the one that runs, and the next one."""

from __future__ import annotations

from collections import deque

from drain.workers.process.jobs import PendingJob
from drain.workers.process.shutdown import Shutdown

# Jobs that wait while one runs, so that the RQ process need not wait for the fetcher.
_AHEAD = 1


class PlainInbox:
    """Buffer between the fetcher and the thread of `PlainJobs`; a part of `Inbox`, and without locks for its reasons.

    Args:
        shutdown: The process' shutdown, which ends the wait for a job.

    Attributes:
        ran: Number of jobs that have ended in this process.
        added: Wakes the thread that runs the jobs.
    """

    def __init__(self, shutdown: Shutdown) -> None:
        self.ran = 0
        self.added = shutdown.new_wakeup()
        self._waiting: deque[PendingJob] = deque()
        self._running: PendingJob | None = None
        # Jobs that waited behind a slow one were withdrawn, and none has ended since.
        self._is_stuck = False

    @property
    def is_full(self) -> bool:
        """True if no further job is wanted now."""
        return len(self._waiting) >= _AHEAD or (self._is_stuck and self._running is not None)

    @property
    def waiting_count(self) -> int:
        """Number of jobs that wait to run."""
        return len(self._waiting)

    def add(self, job: PendingJob) -> None:
        """Let a job run."""
        self._waiting.append(job)
        self.added.notify()

    def begin_next(self) -> PendingJob | None:
        """Return the next job, which runs from now on; None if no job waits."""
        try:
            job = self._waiting.popleft()
        except IndexError:
            return None
        self._running = job
        return job

    def end(self) -> None:
        """Count the running job, which has ended."""
        self._running = None
        self._is_stuck = False
        self.ran += 1

    def withdraw(self, waiting_since: float) -> list[PendingJob]:
        """Remove and return the jobs that have waited since then or longer; no other is wanted until one ends."""
        found: list[PendingJob] = []
        # Only this thread adds jobs, and the other one may take them.
        for job in list(self._waiting):
            if job.waits_since <= waiting_since:
                try:
                    self._waiting.remove(job)
                except ValueError:
                    continue
                found.append(job)
        self._is_stuck |= bool(found)
        return found
