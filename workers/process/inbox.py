"""The buffer of one worker process: jobs that wait, that run, and whose outcome is not yet recorded.

The threads of a process exchange jobs here. The fetcher fills `waiting`, the main thread empties it and fills
`outcomes`, which the finisher empties. Nothing in the inbox needs a lock: each step is one operation on a deque, a
dict, a set or a SimpleQueue, none of which is locked while a signal handler runs.
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

# Size of a full batch: the finisher does not wait for more outcomes than these.
FULL_BATCH = 250


# Margin for the child of an isolated job, which its parent kills before the supervisor kills the parent.
_ISOLATED_MARGIN_SECONDS = 10.0


def longest_seconds(attempt: Attempt) -> float:
    """Compute the seconds that a job may run before the supervisor kills this process."""
    margin = _ISOLATED_MARGIN_SECONDS if attempt.options.isolated else 0.0
    return attempt.claim.timeout_seconds + KILL_AFTER_SECONDS + margin


class Inbox:
    """The jobs of one process, and how many more it wants.

    Args:
        options: Bounds: jobs fetched at a time, coroutines at once, jobs before the process is recycled.
        journal: Claimed jobs of the process, in memory that the supervisor reads.
        shutdown: Recycles the process after its last allowed job.

    Attributes:
        waiting: Jobs for the main thread.
        waiting_async: Jobs for the event loop.
        waiting_for_threads: Jobs for the threads that run jobs.
        plain: Plain RQ jobs.
        has_threads: Jobs run in threads, unless they must run in the main thread.
        claimed: Jobs that are claimed and whose outcome is not recorded, by job id.
        pending: Pending jobs, plain ones included, that wait or run.
        outcomes: Jobs that have ended, with their outcomes, for the finisher.
        running: Tracked jobs that run.
        ran: Number of tracked jobs that have ended in this process.
        work_added: Wakes the main thread: a job waits.
        room_freed: Wakes the fetcher: more jobs may be wanted, or a claimed one is recorded.
        outcome_added: Wakes the finisher: `outcomes` is not empty.
        batch_filled: Wakes the finisher: further outcomes are not worth waiting for.
    """

    # One thing: the state that the threads of a process share about their jobs; each method is one change of it.
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
        # Jobs that waited behind a slow one were given back, and none has ended since.
        self._is_stuck = False
        self._max_jobs = options.max_jobs
        self._concurrency = options.concurrency
        self._threads = options.threads

    @property
    def is_idle(self) -> bool:
        """True if no job waits and none runs."""
        return not self.has_tracked and not self.pending

    @property
    def has_tracked(self) -> bool:
        """True if a tracked job waits or runs."""
        return bool(self.running) or bool(self.waiting_count)

    @property
    def waiting_count(self) -> int:
        """Number of tracked jobs that wait to run."""
        return len(self.waiting) + len(self.waiting_async) + len(self.waiting_for_threads)

    @property
    def wanted(self) -> int:
        """Number of jobs to fetch now."""
        size, waits = self._prefetch.size, self.waiting_count
        if (self._is_stuck and self.running) or self.journal.room < size:
            return 0
        if size == 1:
            return 1 if self.is_free and not waits else 0
        return size - waits if waits <= self._prefetch.low else 0

    @property
    def is_free(self) -> bool:
        """True if a job could begin at once, wherever it has to run."""
        running = self.running
        in_threads = len(running.in_threads) < self._threads or not self.has_threads
        return running.current is None and len(running.async_jobs) < self._concurrency and in_threads

    def attempts(self) -> list[ClaimedJob]:
        """List the attempts whose leases have to be extended."""
        return list(self.claimed.values())

    def add_claimed(self, job: ClaimedJob) -> None:
        """Note a claimed job, which has a slot in the journal; `accept` lets it run."""
        self.claimed[job.claim.id] = job

    def add_pending(self, popped: PoppedId, waits_since: float) -> PendingJob:
        """Note a job that is claimed right before it runs; `accept` lets it run."""
        self.pending.add(added := PendingJob(popped, waits_since))
        return added

    def accept(
        self,
        items: Sequence[Item],
        async_jobs: Sequence[ClaimedJob],
        for_threads: Sequence[ClaimedJob] = (),
    ) -> None:
        """Let tracked jobs run, `items` in the main thread, the others in the event loop and in threads."""
        self.waiting.extend(items)
        self.waiting_async.extend(async_jobs)
        self.waiting_for_threads.extend(for_threads)
        self.work_added.notify()

    def withdraw(self, waiting_since: float) -> list[Item]:
        """Remove and return all waiting tracked jobs of each thread whose first has waited since then or longer."""
        items: list[Item] = []
        for waiting in list[deque[Any]]((self.waiting, self.waiting_async, self.waiting_for_threads)):
            # An item that is gone has just begun to run.
            with suppress(IndexError):
                if waiting[0].waits_since <= waiting_since:
                    while True:
                        items.append(waiting.popleft())
        return items

    def withdraw_stuck(self, waiting_since: float) -> list[Item]:
        """Do as `withdraw`; if there were such jobs, none is wanted until a running job ends."""
        items = self.withdraw(waiting_since)
        if items:
            self._is_stuck = True
        return items

    def remove_all(self, items: Iterable[Item]) -> None:
        """Remove jobs that were withdrawn and given back."""
        for item in items:
            if isinstance(item, PendingJob):
                self.pending.discard(item)
            else:
                self.remove(item)

    def begin_next(self) -> Item | None:
        """Return the next job of the main thread, which runs from now on; None if no job waits."""
        try:
            item = self.waiting.popleft()
        except IndexError:
            return None
        self.running.begin(item)
        return item

    def begin_next_async(self) -> ClaimedJob | None:
        """Return the next job of the event loop, which runs from now on; None if no job waits."""
        return self._begin_beside(self.waiting_async, self.running.begin_async)

    def begin_next_in_thread(self) -> ClaimedJob | None:
        """Return the next job of a thread, which runs from now on; None if no job waits."""
        return self._begin_beside(self.waiting_for_threads, self.running.begin_in_thread)

    def _begin_beside(
        self, waiting: deque[ClaimedJob], begin: Callable[[ClaimedJob], None]
    ) -> ClaimedJob | None:
        try:
            job = waiting.popleft()
        except IndexError:
            return None
        begin(job)
        # Others may begin beside this one, and slow jobs are fetched one by one.
        self._wake_fetcher_if_low()
        return job

    def end_async(self, job: ClaimedJob) -> None:
        """Note that the event loop does not run a job any more."""
        self.running.end_async(job)
        self._wake_fetcher_if_low()

    def end_in_thread(self, job: ClaimedJob) -> None:
        """Note that a thread does not run a job any more."""
        self.running.end_in_thread(job)
        self._wake_fetcher_if_low()

    def note_begin(self, job: ClaimedJob, began: float) -> None:
        """Note in the journal that a job begins, and when the supervisor kills this process for it."""
        job.began_at = began
        self.journal.begin(job.slot, began + longest_seconds(job))

    def drop(self, job: ClaimedJob) -> None:
        """Remove a job whose lease was lost before it began."""
        if job.lease.cancelled:
            # As an attempt that has ended: no later delivery takes its place, so its own has to be cleared.
            self.add_outcome(job, Lost(describe(JobCancelledError("it was cancelled before it began"))), 0.0)
            return
        self.remove(job)
        self.room_freed.notify()

    def add_outcome(self, job: ClaimedJob, outcome: Outcome, seconds: float, at_once: int = 1) -> None:
        """Note in the journal how a job has ended, and add its outcome.

        In this order: a process that is killed in between leaves a journal by which its successor records the outcome.

        Args:
            job: The job.
            outcome: Its outcome.
            seconds: Time that the job ran.
            at_once: Upper bound of the jobs that this process ran meanwhile.
        """
        failpoint(FailurePoint.RAN)
        if isinstance(outcome, AlreadyFinished) or (
            isinstance(outcome, Finished) and outcome.result is not None
        ):
            # Even where the worker does not group commits: a job may set synchronous_commit in its transaction. And a
            # result is not in the journal: without it, nobody else may finish the job.
            self.journal.commit(job.slot)
        elif isinstance(outcome, Finished):
            self.journal.finish(job.slot)
        else:
            self.journal.end(job.slot)
        job.took = seconds
        self.outcomes.append((job, outcome))
        self.count_run(seconds / at_once)
        if not self.waiting_count or len(self.outcomes) >= FULL_BATCH:
            self.batch_filled.notify()
        self.outcome_added.notify()

    def end_pending(self, job: PendingJob, seconds: float) -> None:
        """Remove a pending tracked job that has ended after some seconds, and whose outcome is recorded."""
        self.pending.discard(job)
        self.count_run(seconds)

    def end_plain(self, job: PendingJob) -> None:
        """Remove a plain job that has ended."""
        self.pending.discard(job)
        self.plain.end()
        self._recycle_after_last()
        self.room_freed.notify()

    def count_run(self, seconds: float) -> None:
        """Count a tracked job that has ended, and that occupied this process for some seconds."""
        self._prefetch.observe(seconds)
        self.ran += 1
        self._recycle_after_last()
        self._is_stuck = False
        self._wake_fetcher_if_low()

    def _recycle_after_last(self) -> None:
        # Jobs may end in several threads at once.
        if self._max_jobs is not None and self.ran + self.plain.ran >= self._max_jobs:
            self._shutdown.recycle()

    def _wake_fetcher_if_low(self) -> None:
        if self.waiting_count <= self._prefetch.low:
            self.room_freed.notify()

    def remove(self, job: ClaimedJob) -> None:
        """Remove a job for which nothing is left to do."""
        self.claimed.pop(job.claim.id, None)
        self.journal.clear(job.slot)
