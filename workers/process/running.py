"""The jobs that run in one worker process, and their interruption from other threads."""

from __future__ import annotations

import os
from time import monotonic

from drain.workers.context.current import Attempt
from drain.workers.errors import WorkerStoppedError
from drain.workers.process.jobs import ClaimedJob, Item, PendingJob


class RunningJobs:
    """The job of the main thread, those of the event loop and those of threads; true if there are any.

    Attributes:
        current: The job that the main thread runs; None between jobs.
        began_at: Time at which the main thread began its latest job, by the monotonic clock.
        async_jobs: The jobs that the event loop runs.
        in_threads: The jobs that run in threads of their own.
    """

    def __init__(self) -> None:
        self.current: Item | None = None
        self.began_at = 0.0
        self.async_jobs: set[ClaimedJob] = set()
        self.in_threads: set[ClaimedJob] = set()

    def __bool__(self) -> bool:
        return self.current is not None or bool(self.async_jobs) or bool(self.in_threads)

    def begin(self, item: Item) -> None:
        """Note a job that the main thread runs from now on."""
        self.began_at = monotonic()
        self.current = item

    def end(self) -> None:
        """Note that the main thread runs no job."""
        self.current = None

    def begin_async(self, job: ClaimedJob) -> None:
        """Note a job that the event loop runs from now on."""
        self.async_jobs.add(job)

    def end_async(self, job: ClaimedJob) -> None:
        """Note that the event loop does not run a job any more."""
        self.async_jobs.discard(job)

    def begin_in_thread(self, job: ClaimedJob) -> None:
        """Note a job that a thread runs from now on."""
        self.in_threads.add(job)

    def end_in_thread(self, job: ClaimedJob) -> None:
        """Note that a thread does not run a job any more."""
        self.in_threads.discard(job)

    def interrupt(self, cause: Exception, *, stopped: bool = False) -> None:
        """Raise an exception in all running jobs.

        Args:
            cause: The exception.
            stopped: The worker stops: the interrupted attempts do not count.
        """
        attempts: list[Attempt] = [*list(self.async_jobs), *list(self.in_threads)]
        for attempt in attempts:
            attempt.interruption.order(cause, stopped=stopped)
        self.interrupt_current(cause, stopped=stopped)

    def interrupt_current(self, cause: Exception, *, stopped: bool = False) -> None:
        """Raise an exception in the job of the main thread, if there is one; see `interrupt`."""
        current = self.current
        attempt = current.attempt if isinstance(current, PendingJob) else current
        if attempt is not None:
            attempt.interruption.order(cause, stopped=stopped)

    def interrupt_for_stop(self) -> None:
        """Interrupt all running jobs because the grace period is over."""
        error = WorkerStoppedError(f"its worker (process {os.getpid()}) is stopping")
        self.interrupt(error, stopped=True)
