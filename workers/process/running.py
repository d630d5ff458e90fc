"""Running jobs, and their interruption by other threads."""

from __future__ import annotations

import os
from time import monotonic

from drain.workers.context.current import Attempt
from drain.workers.errors import WorkerStoppedError
from drain.workers.process.jobs import ClaimedJob, Item, PendingJob


class RunningJobs:
    """Running jobs; true if there are any.

    Attributes:
        current: The main thread's job.
        began_at: Start of its latest job, by `monotonic()`.
    """

    def __init__(self) -> None:
        self.current: Item | None = None
        self.began_at = 0.0
        self.async_jobs: set[ClaimedJob] = set()
        self.in_threads: set[ClaimedJob] = set()

    def __bool__(self) -> bool:
        return self.current is not None or bool(self.async_jobs) or bool(self.in_threads)

    def begin(self, item: Item) -> None:
        """Add the main thread's job."""
        self.began_at = monotonic()
        self.current = item

    def end(self) -> None:
        """Mark the main thread idle."""
        self.current = None

    def begin_async(self, job: ClaimedJob) -> None:
        """Add an event loop's job."""
        self.async_jobs.add(job)

    def end_async(self, job: ClaimedJob) -> None:
        """Remove an event loop's job."""
        self.async_jobs.discard(job)

    def begin_in_thread(self, job: ClaimedJob) -> None:
        """Add a thread's job."""
        self.in_threads.add(job)

    def end_in_thread(self, job: ClaimedJob) -> None:
        """Remove a thread's job."""
        self.in_threads.discard(job)

    def interrupt(self, cause: Exception, *, stopped: bool = False) -> None:
        """Raise an exception in all jobs; if `stopped`, attempts do not count."""
        attempts: list[Attempt] = [*list(self.async_jobs), *list(self.in_threads)]
        for attempt in attempts:
            attempt.interruption.order(cause, stopped=stopped)
        self.interrupt_current(cause, stopped=stopped)

    def interrupt_current(self, cause: Exception, *, stopped: bool = False) -> None:
        """Raise an exception in the main thread's job, if any."""
        current = self.current
        attempt = current.attempt if isinstance(current, PendingJob) else current
        if attempt is not None:
            attempt.interruption.order(cause, stopped=stopped)

    def interrupt_for_stop(self) -> None:
        """Interrupt all jobs after the grace period."""
        error = WorkerStoppedError(f"its worker (process {os.getpid()}) is stopping")
        self.interrupt(error, stopped=True)
