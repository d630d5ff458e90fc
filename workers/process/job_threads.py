"""Threads that run blocking jobs, several at once."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from time import monotonic

from drain.workers.context import connection_cache
from drain.workers.execution.attempt import run as run_here
from drain.workers.execution.thread_alarm import thread_alarm
from drain.workers.process.inbox import Inbox
from drain.workers.process.jobs import ClaimedJob
from drain.workers.process.shutdown import Shutdown

# Between looks for signals.
_LOOK_SECONDS = 0.1


class JobThreads:
    """Runs jobs in threads; with one, the main thread runs all jobs."""

    def __init__(self, inbox: Inbox, shutdown: Shutdown, number: int) -> None:
        self._inbox = inbox
        self._shutdown = shutdown
        self._number = number
        # One per job.
        self._notices: SimpleQueue[None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run_or_fail, name=f"job {n}", daemon=True)
            for n in range(1, number + 1 if number > 1 else 1)
        ]

    def start(self) -> None:
        """Start the threads; each may keep a connection for transactions."""
        connection_cache.keep(self._number)
        for thread in self._threads:
            thread.start()

    def wake(self, jobs: int) -> None:
        """Wake threads for some jobs; in the fetcher's thread."""
        for _ in range(jobs):
            self._notices.put(None)

    def join(self) -> None:
        """Wait for running jobs after shutdown; in the main thread."""
        self.wake(len(self._threads))
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_LOOK_SECONDS)

    def _run_or_fail(self) -> None:
        try:
            while not self._shutdown.requested:
                self._notices.get()
                self._run_next()
        # Not from a job: an error of our own ends the process.
        except BaseException as error:  # noqa: BLE001
            self._shutdown.fail(error)

    def _run_next(self) -> None:
        inbox = self._inbox
        job = None if self._shutdown.requested else inbox.begin_next_in_thread()
        # Given back.
        if job is None:
            return
        try:
            self._run(job)
        finally:
            inbox.end_in_thread(job)

    def _run(self, job: ClaimedJob) -> None:
        inbox = self._inbox
        if job.lease.lost:
            inbox.drop(job)
            return
        began = monotonic()
        inbox.note_begin(job, began)
        result = run_here(job, thread_alarm)
        inbox.add_outcome(job, result, monotonic() - began, self._number)
