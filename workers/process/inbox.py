"""What a worker process has in hand: jobs that wait, that run, and whose outcome is still to be written down.

The threads of a process meet here. The taker fills `waiting`, the main thread empties it, and appends to `ended`,
which the finisher empties. Nothing in it needs a lock: each step is one operation on a deque, a dict or a
SimpleQueue, none of which is held while a signal's handler runs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from drain.failpoints import FailurePoint, failpoint
from drain.tables.claims import Claim
from drain.wire import PoppedId
from workers.context.current import Attempt
from workers.errors import WorkerStoppedError
from workers.execution.outcome import AlreadyFinished, Finished, Outcome
from workers.exits import KILL_AFTER_SECONDS
from workers.handover.journal import Journal
from workers.lease.interruption import Watcher
from workers.options import WorkOptions
from workers.process.prefetch import Prefetch

# The finisher is woken at the latest when so many have ended.
ENOUGH = 250
_ISOLATED_MARGIN_SECONDS = 10.0


class Wakeup:
    """Wakes one thread; may be rung from a signal's handler."""

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Let `wait` return, now or when it is next called."""
        if self._rung.empty():
            self._rung.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is rung, or for so long; returns whether it was."""
        try:
            self._rung.get(timeout=seconds)
        except Empty:
            return False
        return True


class ClaimedJob(Attempt):
    """The attempt at a job that has been claimed and waits, runs, or is to be recorded.

    Attributes:
        rq_id: Of the delivery.
        slot: In the journal.
        taken_at: When it began to wait, by the monotonic clock.
        took: Seconds that it ran, once it has ended.
    """

    __slots__ = ("rq_id", "slot", "taken_at", "took")

    def __init__(
        self,
        claim: Claim,
        asked_at: float,
        watcher: Watcher,
        database_url: str,
        *,
        rq_id: str,
        slot: int,
        taken_at: float,
    ) -> None:
        super().__init__(claim, asked_at, watcher, database_url)
        self.rq_id = rq_id
        self.slot = slot
        self.taken_at = taken_at
        self.took = 0.0


class PendingJob:
    """What is claimed only when its turn comes: a job that is to be alone, or a plain RQ job.

    Attributes:
        taken: The id, as it was in the list.
        taken_at: By the monotonic clock.
        attempt: The attempt, once it is running.
    """

    __slots__ = ("attempt", "taken", "taken_at")

    def __init__(self, taken: PoppedId, taken_at: float) -> None:
        self.attempt: Attempt | None = None
        self.taken = taken
        self.taken_at = taken_at


Item = ClaimedJob | PendingJob


def longest_seconds(attempt: Attempt) -> float:
    """Return for how many seconds a job may run before its process is killed for it."""
    # The child of an isolated job is killed by its parent, which comes first.
    margin = _ISOLATED_MARGIN_SECONDS if attempt.options.isolated else 0.0
    return attempt.claim.timeout_seconds + KILL_AFTER_SECONDS + margin


class Inbox:
    """What is in hand, and whether more is wanted.

    Attributes:
        journal: The same, for the supervisor.
        waiting: What the main thread is to run.
        waiting_async: What the event loop is to run.
        held: All that has been claimed and not been recorded, by job id.
        singly: All that is claimed only when its turn comes, or has been, and has not ended.
        ended: What has ended, with its outcome.
        running: What the main thread is running.
        running_async: What the event loop is running.
        began_at: When the main thread began with it.
        work, room, full, done: Rung when there is something to run; when more may be taken; when the finisher
            should not wait any longer; when something has ended; and, like those to come, when the process is to stop.
        chores, told, pause: Of the housekeeping, of what tells RQ's tools, and of a taker that waits for a store.
        stuck: What waited for too long behind what is running has been given back, and nothing has ended since.
        stopping: Nothing more is to begin.
        stop_at: What runs at this time is interrupted.
        is_to_stop_now: What runs has no more time.
        recycled: A new process is to take the place of this one.
        ran: How many jobs have ended.
        error: What has ended a thread of this process.
    """

    def __init__(self, options: WorkOptions, journal: Journal) -> None:
        self.journal = journal
        self.prefetch = Prefetch(options.prefetch)
        self.waiting: deque[Item] = deque()
        self.waiting_async: deque[ClaimedJob] = deque()
        self.held: dict[int, ClaimedJob] = {}
        self.singly: set[PendingJob] = set()
        self.ended: deque[tuple[ClaimedJob, Outcome]] = deque()
        self.running: Item | None = None
        self.running_async: set[ClaimedJob] = set()
        self.began_at = 0.0
        self.work, self.room, self.full, self.done, self.chores, self.told, self.pause = (
            Wakeup() for _ in range(7)
        )
        self.stuck = False
        self.stopping = False
        self.stop_at = float("inf")
        self.is_to_stop_now = False
        self.recycled = False
        self.ran = 0
        self.error: BaseException | None = None
        self._told_to_stop = False
        self._max_jobs = options.max_jobs
        self._concurrency = options.concurrency
        self._grace_seconds = options.grace_seconds

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return self.running is None and not self.running_async and not self.waits

    @property
    def waits(self) -> int:
        """How many have been taken and have not begun."""
        return len(self.waiting) + len(self.waiting_async)

    @property
    def wanted(self) -> int:
        """How many are to be taken now."""
        size, waits = self.prefetch.size, self.waits
        is_stuck = self.stuck and (self.running is not None or bool(self.running_async))
        if is_stuck or self.journal.room < size:
            return 0
        if size == 1:
            is_free = self.running is None and len(self.running_async) < self._concurrency
            return 1 if is_free and not waits else 0
        return size - waits if waits <= size // 2 else 0

    def attempts(self) -> list[ClaimedJob]:
        """Return the attempts whose leases are to be extended."""
        return list(self.held.values())

    def begin(self, held: ClaimedJob, began: float) -> None:
        """Write into the journal that a job begins."""
        self.journal.begin(held.slot, began + longest_seconds(held))

    def end(self, held: ClaimedJob, result: Outcome, seconds: float, at_once: int = 1) -> None:
        """Write into the journal how a job has ended, and hand it to the finisher.

        In this order: a process that is killed in between leaves a journal by which its successor records the outcome.

        Args:
            held: The job.
            result: Its outcome.
            seconds: How long it ran.
            at_once: Upper bound of the jobs that this process ran meanwhile.
        """
        failpoint(FailurePoint.RAN)
        if isinstance(result, Finished | AlreadyFinished):
            self.journal.finish(held.slot)
        else:
            self.journal.end(held.slot)
        held.took = seconds
        self.ended.append((held, result))
        self.end_unclaimed(seconds / at_once)
        if not self.waits or len(self.ended) >= ENOUGH:
            self.full.ring()
        self.done.ring()

    def end_unclaimed(self, seconds: float) -> None:
        """A job has ended, and has been recorded."""
        self.prefetch.ended(seconds)
        self.ran += 1
        if self.ran == self._max_jobs:
            self.recycle()
        self.stuck = False
        if self.waits <= self.prefetch.size // 2:
            self.room.ring()

    def forget(self, held: ClaimedJob) -> None:
        """Nothing is left to be done for a job."""
        self.held.pop(held.claim.id, None)
        self.journal.clear(held.slot)

    def accept(self, items: Sequence[Item], into_loop: Sequence[ClaimedJob]) -> None:
        """Jobs that are to be run: by the main thread, and by the event loop."""
        self.waiting.extend(items)
        self.waiting_async.extend(into_loop)
        self.work.ring()

    def take_back(self, waiting_since: float) -> list[Item]:
        """All that waits, of each thread for which the first has waited since then or longer."""
        items: list[Item] = []
        for waiting in list[deque[Any]]((self.waiting, self.waiting_async)):
            # Whatever is not there any more has just begun.
            with suppress(IndexError):
                if waiting[0].taken_at <= waiting_since:
                    while True:
                        items.append(waiting.popleft())
        return items

    def resign(self) -> None:
        """As `stop`, and nobody is to take the place of this process."""
        self.journal.resigned = True
        self.stop()

    def stop(self) -> None:
        """Begin nothing more; what runs has its time of grace. May be called again, and in a signal's handler."""
        if not self._told_to_stop:
            self._told_to_stop = True
            self.stop_at = min(self.stop_at, monotonic() + self._grace_seconds)
        self.recycled = False
        self._begin_nothing_more()

    def stop_now(self) -> None:
        """As `stop`, and what runs has no more time."""
        self.stop_at, self.is_to_stop_now = 0.0, True
        self.stop()

    def recycle(self) -> None:
        """Begin nothing more: a new process is to take over when what runs has ended."""
        self.recycled = not self._told_to_stop
        self._begin_nothing_more()

    def _begin_nothing_more(self) -> None:
        self.stopping = True
        for bell in (self.work, self.room, self.full, self.done, self.chores, self.told, self.pause):
            bell.ring()

    def fail(self, error: BaseException) -> None:
        """A thread cannot go on, and so neither can the process."""
        self.error = self.error or error
        self.stop()

    def interrupt(self, cause: Exception, *, stopped: bool = False) -> None:
        """Raise in whatever runs; `stopped` says that the worker stops, and the attempts do not count."""
        running = self.running
        alone = running.attempt if isinstance(running, PendingJob) else running
        attempts: list[Attempt] = list(self.running_async)
        if alone is not None:
            attempts.append(alone)
        for attempt in attempts:
            attempt.interruption.order(cause, stopped=stopped)

    def interrupt_for_stop(self) -> None:
        """As the worker's time of grace is over."""
        error = WorkerStoppedError(f"its worker (process {os.getpid()}) was told to stop")
        self.interrupt(error, stopped=True)
