"""Buffer of waiting and running jobs, and of unrecorded outcomes.

The fetcher fills `waiting`; the main thread empties it and fills `outcomes`, which the finisher empties. No locks: each
step is one operation on a deque, dict, set or SimpleQueue, none locked while a signal handler runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from drain.failpoints import FailurePoint, failpoint
from drain.wire import PoppedId
from drain.workers.context.current import Attempt
from drain.workers.errors import JobCancelledError
from drain.workers.execution.outcome import AlreadyFinished, Finished, Lost, Outcome, describe
from drain.workers.exits import KILL_AFTER_SECONDS
from drain.workers.handover.journal import Journal
from drain.workers.options import WorkOptions
from drain.workers.process.jobs import ClaimedJob, Item, PendingJob
from drain.workers.process.plain_inbox import PlainInbox
from drain.workers.process.prefetch import Prefetch
from drain.workers.process.running import RunningJobs
from drain.workers.process.shutdown import Shutdown

# Ends the finisher's wait.
FULL_BATCH = 250
# Outcomes of slower jobs are recorded at once, and the leader notified, if other jobs may wait for their places: 1.7 ms
# from the end of a 50 ms job to the next one's move, and 2.2 without a notification, since the leader polls too.
SLOW_SECONDS = 0.01

# An isolated job's child is killed this long before its parent.
_ISOLATED_MARGIN_SECONDS = 10.0


def longest_seconds(attempt: Attempt) -> float:
    """Return a job's time until the supervisor kills this process."""
    margin = _ISOLATED_MARGIN_SECONDS if attempt.options.isolated else 0.0
    return attempt.claim.timeout_seconds + KILL_AFTER_SECONDS + margin


class Inbox:
    """Jobs of one process.

    Attributes:
        has_threads: Jobs run in threads unless bound to the main thread.
        claimed: Claimed, unrecorded jobs by id.
        pending: Pending and plain jobs that wait or run.
        work_added: Wakes the main thread.
        room_freed: Wakes the fetcher.
        outcome_added: Wakes the finisher.
        batch_filled: Ends the finisher's wait for more.
    """

    # One thing: the jobs that a process' threads share.
    def __init__(self, options: WorkOptions, journal: Journal, shutdown: Shutdown) -> None:
        self.journal = journal
        self.waiting: deque[Item] = deque()
        self.waiting_async: deque[ClaimedJob] = deque()
        self.waiting_for_threads: deque[ClaimedJob] = deque()
        self.plain = PlainInbox(shutdown)
        self.has_threads = options.threads > 1
        self.claimed: dict[int, ClaimedJob] = {}
        self.pending: set[PendingJob] = set()
        self.outcomes: deque[tuple[ClaimedJob, Outcome]] = deque()
        self.running = RunningJobs()
        self.ran = 0
        self.work_added, self.room_freed = shutdown.new_wakeup(), shutdown.new_wakeup()
        self.outcome_added, self.batch_filled = shutdown.new_wakeup(), shutdown.new_wakeup()
        self._shutdown = shutdown
        self._prefetch = Prefetch(options.prefetch)
        # Jobs behind a slow one were returned, and none has ended since.
        self._is_stuck = False
        self._max_jobs = options.max_jobs
        self._concurrency = options.concurrency
        self._threads = options.threads

    @property
    def is_idle(self) -> bool:
        """True if no job waits or runs."""
        return not self.has_tracked and not self.pending

    @property
    def has_tracked(self) -> bool:
        """True if a tracked job waits or runs."""
        return bool(self.running) or bool(self.waiting_count)

    @property
    def waiting_count(self) -> int:
        """Waiting tracked jobs."""
        return len(self.waiting) + len(self.waiting_async) + len(self.waiting_for_threads)

    @property
    def wanted(self) -> int:
        """Jobs to fetch now."""
        size, waits = self._prefetch.size, self.waiting_count
        if (self._is_stuck and self.running) or self.journal.room < size:
            return 0
        if size == 1:
            return 1 if self.is_free and not waits else 0
        return size - waits if waits <= self._prefetch.low else 0

    @property
    def is_free(self) -> bool:
        """True if any job could begin at once."""
        running = self.running
        in_threads = len(running.in_threads) < self._threads or not self.has_threads
        return running.current is None and len(running.async_jobs) < self._concurrency and in_threads

    def attempts(self) -> list[ClaimedJob]:
        """List attempts whose leases need extending."""
        return list(self.claimed.values())

    def add_claimed(self, job: ClaimedJob) -> None:
        """Add a claimed job; `accept` lets it run."""
        self.claimed[job.claim.id] = job

    def add_pending(self, popped: PoppedId, waits_since: float) -> PendingJob:
        """Add a job claimed when it runs; `accept` lets it run."""
        self.pending.add(added := PendingJob(popped, waits_since))
        return added

    def accept(
        self,
        items: Sequence[Item],
        async_jobs: Sequence[ClaimedJob],
        for_threads: Sequence[ClaimedJob] = (),
    ) -> None:
        """Let tracked jobs run, `items` in the main thread."""
        self.waiting.extend(items)
        self.waiting_async.extend(async_jobs)
        self.waiting_for_threads.extend(for_threads)
        self.work_added.notify()

    def withdraw(self, waiting_since: float) -> list[Item]:
        """Withdraw the jobs of each thread whose first has waited since then."""
        items: list[Item] = []
        for waiting in list[deque[Any]]((self.waiting, self.waiting_async, self.waiting_for_threads)):
            # The job has just begun.
            with suppress(IndexError):
                if waiting[0].waits_since <= waiting_since:
                    while True:
                        items.append(waiting.popleft())
        return items

    def withdraw_stuck(self, waiting_since: float) -> list[Item]:
        """Withdraw; if there were jobs, want none until a running job ends."""
        items = self.withdraw(waiting_since)
        if items:
            self._is_stuck = True
        return items

    def remove_all(self, items: Iterable[Item]) -> None:
        """Remove withdrawn jobs."""
        for item in items:
            if isinstance(item, PendingJob):
                self.pending.discard(item)
            else:
                self.remove(item)

    def begin_next(self) -> Item | None:
        """Start the main thread's next job."""
        try:
            item = self.waiting.popleft()
        except IndexError:
            return None
        self.running.begin(item)
        return item

    def begin_next_async(self) -> ClaimedJob | None:
        """Start the event loop's next job."""
        return self._begin_beside(self.waiting_async, self.running.begin_async)

    def begin_next_in_thread(self) -> ClaimedJob | None:
        """Start a thread's next job."""
        return self._begin_beside(self.waiting_for_threads, self.running.begin_in_thread)

    def _begin_beside(
        self, waiting: deque[ClaimedJob], begin: Callable[[ClaimedJob], None]
    ) -> ClaimedJob | None:
        try:
            job = waiting.popleft()
        except IndexError:
            return None
        begin(job)
        # Others may begin during it, and slow jobs are fetched singly.
        self._wake_fetcher_if_low()
        return job

    def end_async(self, job: ClaimedJob) -> None:
        """End an event loop's job."""
        self.running.end_async(job)
        self._wake_fetcher_if_low()

    def end_in_thread(self, job: ClaimedJob) -> None:
        """End a thread's job."""
        self.running.end_in_thread(job)
        self._wake_fetcher_if_low()

    def note_begin(self, job: ClaimedJob, began: float) -> None:
        """Note a job's beginning and kill time in the journal."""
        job.began_at = began
        self.journal.begin(job.slot, began + longest_seconds(job))

    def drop(self, job: ClaimedJob) -> None:
        """Remove a job that lost its lease before it began."""
        if job.lease.cancelled:
            # Nothing else would clear its delivery.
            self.add_outcome(job, Lost(describe(JobCancelledError("it was cancelled before it began"))), 0.0)
            return
        self.remove(job)
        self.room_freed.notify()

    @property
    def first_waiting(self) -> Item | None:
        """The main thread's next job."""
        with suppress(IndexError):
            return self.waiting[0]
        return None

    def return_first(self, jobs: Sequence[ClaimedJob]) -> None:
        """Let jobs whose run was undone run alone, before all others."""
        for job in reversed(jobs):
            job.run_alone()
            self.journal.end(job.slot)
            self.waiting.appendleft(job)

    def add_outcome(
        self, job: ClaimedJob, outcome: Outcome, seconds: float, at_once: int = 1, *, is_counted: bool = False
    ) -> None:
        """Record an outcome in the journal, then add it: after a kill the successor records it.

        Args:
            seconds: Run time.
            at_once: Jobs that may have run since.
            is_counted: `count_run` was called.
        """
        failpoint(FailurePoint.RAN)
        if isinstance(outcome, AlreadyFinished) or (
            isinstance(outcome, Finished) and outcome.result is not None
        ):
            # Jobs may set synchronous_commit, and the journal has no results, so only this process can finish the job.
            self.journal.commit(job.slot)
        elif isinstance(outcome, Finished):
            self.journal.finish(job.slot)
        else:
            self.journal.end(job.slot)
        job.took = seconds
        self.outcomes.append((job, outcome))
        if not is_counted:
            self.count_run(seconds / at_once)
        is_awaited = seconds >= SLOW_SECONDS * at_once and job.notifies_end
        if is_awaited or not self.waiting_count or len(self.outcomes) >= FULL_BATCH:
            self.batch_filled.notify()
        self.outcome_added.notify()

    def end_pending(self, job: PendingJob, seconds: float) -> None:
        """Remove a recorded pending job."""
        self.pending.discard(job)
        self.count_run(seconds)

    def end_plain(self, job: PendingJob) -> None:
        """Remove a plain job."""
        self.pending.discard(job)
        self.plain.end()
        self._recycle_after_last()
        self.room_freed.notify()

    def count_run(self, seconds: float) -> None:
        """Count a tracked job that took some seconds."""
        self._prefetch.observe(seconds)
        self.ran += 1
        self._recycle_after_last()
        self._is_stuck = False
        self._wake_fetcher_if_low()

    def _recycle_after_last(self) -> None:
        # Threads may end jobs concurrently.
        if self._max_jobs is not None and self.ran + self.plain.ran >= self._max_jobs:
            self._shutdown.recycle()

    def _wake_fetcher_if_low(self) -> None:
        if self.waiting_count <= self._prefetch.low:
            self.room_freed.notify()

    def remove(self, job: ClaimedJob) -> None:
        """Remove a completed job."""
        self.claimed.pop(job.claim.id, None)
        self.journal.clear(job.slot)
