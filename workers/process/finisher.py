"""The thread that records outcomes: many jobs are finished in one statement, and cleared in Redis in one command."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from drain.errors import UnavailableError
from drain.failpoints import FailurePoint, failpoint
from drain.tables import outcomes
from drain.wire import Consumer
from workers.execution.death import Death
from workers.execution.decision import CANCELLED
from workers.execution.outcome import Finished, Outcome
from workers.execution.recorder import Recorder, is_news, log_finished
from workers.execution.rq_books import RQBooks
from workers.lease.database import Database
from workers.process.inbox import Inbox
from workers.process.jobs import ClaimedJob
from workers.stores import REDIS, answering

log = logging.getLogger(__name__)

# Batching window: finished jobs wait up to 10 ms so that one statement records many. A worker that is killed
# meanwhile leaves its journal; if its machine dies, these jobs run again.
_BATCHING_SECONDS = 0.01
# Upper bound of the deliveries whose hashes could not be cleared while Redis was away.
_MOST_UNCLEARED = 100_000
_MORE = "; -v logs every one"


@dataclass(slots=True)
class Finisher:
    """Records the outcomes of jobs, until `stop` is called and none is left.

    Attributes:
        inbox: Source of the outcomes.
        consumer: Connection to Redis, where the hashes of the deliveries are.
        database: Connection to PostgreSQL; no other thread uses it.
        books: Notes for RQ about jobs that have ended.
        finished, failed: Numbers of jobs so far.
    """

    inbox: Inbox
    consumer: Consumer
    database: Database
    books: RQBooks = field(default_factory=RQBooks)
    finished: int = 0
    failed: int = 0
    _recorder: Recorder = field(init=False)
    _is_last_batch: bool = field(default=False, init=False)
    # RQ id and queue of each finished delivery whose hash is left to clear.
    _uncleared: list[tuple[str, str]] = field(default_factory=list)
    # RQ id of each other delivery whose hash is left to clear, unless RQ jobs depend on it.
    _unfinished: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._recorder = Recorder(self.database)

    def run(self) -> None:
        """Record outcomes until `stop` is called and all are recorded."""
        inbox = self.inbox
        try:
            while not self._is_last_batch or inbox.outcomes:
                if not inbox.outcomes:
                    inbox.outcome_added.wait()
                if not self._is_last_batch and inbox.waiting_count:
                    inbox.batch_filled.wait(_BATCHING_SECONDS)
                self._record([inbox.outcomes.popleft() for _ in range(len(inbox.outcomes))])
            self._clear([])
        finally:
            self.database.close()

    def stop(self) -> None:
        """Let `run` return once all is recorded; no job may end after this call."""
        self._is_last_batch = True
        self.inbox.outcome_added.notify()
        self.inbox.batch_filled.notify()

    def note_recorded(self, rq_id: str, queue: str, word: str, death: Death | None) -> None:
        """Count a job whose outcome is recorded, and take care of its delivery in Redis.

        The hash of the delivery is cleared with the next ones, or kept for RQ to show a dead job as failed.

        Args:
            rq_id: RQ's id of the delivery.
            queue: Queue of the job.
            word: Name of the outcome, as `Recorder.record` returns it.
            death: The death of the job, if it is dead.
        """
        if word == "finished":
            self.finished += 1
        elif word not in ("interrupted", CANCELLED):
            self.failed += 1
        self._count()
        if death is not None and self.books.died(rq_id, death):
            return
        # Dependents are not released by a job that is dead, or that another worker has.
        if word == "finished":
            self._uncleared.append((rq_id, queue))
        else:
            self._unfinished.append(rq_id)

    def note_refused(self) -> None:
        """Count a job that another worker has: its hash belongs to that worker."""
        self.failed += 1
        self._count()

    def _count(self) -> None:
        self.inbox.journal.count(self.finished, self.failed)

    def _record(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> None:
        if not ended:
            return
        for job, _ in ended:
            job.lease.ending = True
        finished = [job for job, outcome in ended if isinstance(outcome, Finished)]
        recorded = self._finish(finished)
        failpoint(FailurePoint.RECORDED)
        # An exception from here on ends the process: its successor sees in the journal which jobs are left.
        for job, outcome in ended:
            if recorded is None and isinstance(outcome, Finished):
                self._unfinished.append(job.rq_id)
            elif recorded is None or job.claim.id not in recorded:
                self._record_one(job, outcome)
        self._clear(
            [(job.rq_id, job.claim.queue) for job in finished if recorded and job.claim.id in recorded]
        )
        # Last of all: after a death, hashes of jobs that are not in the journal are never cleared.
        for job, _ in ended:
            self.inbox.remove(job)
        self.inbox.room_freed.notify()

    def _finish(self, jobs: Sequence[ClaimedJob]) -> set[int] | None:
        """Finish jobs in one statement; return the ids of those finished, or None if PostgreSQL is away."""
        if not jobs:
            return set()
        claims = [job.claim for job in jobs]
        try:
            recorded = self.database.ask(lambda c: outcomes.finish_many(c, claims))
        except psycopg.Error:
            # One of them cannot be finished, and none was: each is recorded alone.
            return set()
        except UnavailableError as error:
            self.database.stores.leave(len(claims), error)
            return None
        self.finished += len(recorded)
        self._count()
        if is_news(claims):
            log_finished([(job.claim, job.took) for job in jobs if job.claim.id in recorded], _MORE)
        return recorded

    def _record_one(self, job: ClaimedJob, outcome: Outcome) -> None:
        try:
            word = self._recorder.record(job.claim, outcome)
        except UnavailableError as error:
            log.debug("the outcome of job %d could not be recorded: %s", job.claim.id, error)
            self.database.stores.leave(1, error)
            self._unfinished.append(job.rq_id)
            return
        self.note_recorded(job.rq_id, job.claim.queue, word, self._recorder.last_death())
        if word == "finished":
            log_finished([(job.claim, job.took)], _MORE)

    def _clear(self, finished: list[tuple[str, str]]) -> None:
        uncleared, self._uncleared = self._uncleared, []
        unfinished, self._unfinished = self._unfinished, []
        finished = [*uncleared, *finished]
        if not finished and not unfinished:
            return
        try:
            with answering(self.database.stores, REDIS):
                awaited = self.consumer.clear([rq_id for rq_id, _ in finished])
                if unfinished:
                    self.consumer.clear_unless_awaited(unfinished)
            queues = dict(finished)
            for rq_id in awaited:
                self.books.finished(rq_id, queues[rq_id])
        except UnavailableError:
            # The next call tries again.
            self._uncleared = finished[-_MOST_UNCLEARED:]
            self._unfinished = unfinished[-_MOST_UNCLEARED:]
