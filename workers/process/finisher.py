"""Thread that records outcomes, many in one statement."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic

from drain.errors import UnavailableError
from drain.failpoints import FailurePoint, failpoint
from drain.tables import running
from drain.wire import Consumer, PoppedId, Traces
from drain.workers.execution import completion_hooks
from drain.workers.execution.death import Death
from drain.workers.execution.decision import CANCELLED
from drain.workers.execution.outcome import Outcome
from drain.workers.execution.recorder import Recorder, is_news, log_finished
from drain.workers.execution.rq_books import RQBooks
from drain.workers.lease.database import Database
from drain.workers.measures.worker_metrics import Meter
from drain.workers.process.cleanup import UnclearedDeliveries
from drain.workers.process.end_hooks import EndHooks
from drain.workers.process.inbox import SLOW_SECONDS, Inbox
from drain.workers.process.jobs import ClaimedJob
from drain.workers.process.outcome_batch import OutcomeBatch
from drain.workers.process.stale_deliveries import OvertakenDeliveries

log = logging.getLogger(__name__)

# Busy: outcomes are batched for up to 50 ms. After a kill the journal has them; if the machine dies, the jobs run
# again. Measured with 1 ms jobs: a batch of 8 costs this thread 0.8 ms, one of 66, 0.9.
_BATCHING_SECONDS = 0.05
# Between notifications of a queue: after an end, the leader looks every few milliseconds.
_NOTIFY_SECONDS = 0.005
# After a failed notification of any queue: it may have waited for a lock, and so would the next.
_NOT_NOTIFIED_SECONDS = 10.0
_MORE = "; -v logs every one"


class _EndNotices:
    """Notifications of ended jobs, sent to the leader if other jobs may wait for their places."""

    def __init__(self) -> None:
        # By queue, and for all.
        self._send_from: dict[str, float] = {}
        self._send_any_from = 0.0

    def send(self, database: Database, jobs: Sequence[ClaimedJob]) -> None:
        """Notify of jobs with recorded outcomes, at most once per queue in some milliseconds."""
        now = monotonic()
        queues = {job.claim.queue for job in jobs if job.took >= SLOW_SECONDS and job.notifies_end}
        queues = {queue for queue in queues if now >= self._send_from.get(queue, self._send_any_from)}
        if not queues:
            return
        if database.send_hint(lambda c: running.notify_ends(c, queues)):
            self._send_from |= dict.fromkeys(queues, monotonic() + _NOTIFY_SECONDS)
        else:
            self._send_from, self._send_any_from = {}, monotonic() + _NOT_NOTIFIED_SECONDS


@dataclass(slots=True)
class Finisher:
    """Records outcomes until `stop`, and then the rest.

    Attributes:
        database: For this thread only.
        overtaken: Receives deliveries in doubt after an unanswered finish.
    """

    inbox: Inbox
    consumer: Consumer
    database: Database
    books: RQBooks = field(default_factory=RQBooks)
    traces: Traces | None = None
    overtaken: OvertakenDeliveries | None = None
    meter: Meter | None = None
    finished: int = 0
    failed: int = 0
    _counting: Lock = field(default_factory=Lock, init=False)
    _recorder: Recorder = field(init=False)
    _is_last_batch: bool = field(default=False, init=False)
    _ended: UnclearedDeliveries = field(init=False)
    _end_hooks: EndHooks = field(default_factory=EndHooks, init=False)
    _end_notices: _EndNotices = field(default_factory=_EndNotices, init=False)

    def __post_init__(self) -> None:
        self._recorder = Recorder(self.database)
        self._ended = UnclearedDeliveries(self.consumer, self.database.stores, self.books)

    def run(self) -> None:
        """Record outcomes until stopped and none is left."""
        inbox = self.inbox
        try:
            while not self._is_last_batch or inbox.outcomes:
                if not inbox.outcomes:
                    inbox.outcome_added.wait()
                if not self._is_last_batch and inbox.waiting_count:
                    inbox.batch_filled.wait(_BATCHING_SECONDS)
                self._record([inbox.outcomes.popleft() for _ in range(len(inbox.outcomes))])
            self._ended.clear()
            self._end_hooks.close()
        finally:
            self.database.close()

    def stop(self) -> None:
        """Let `run` return once all is recorded; no job may end afterwards."""
        self._is_last_batch = True
        self.inbox.outcome_added.notify()
        self.inbox.batch_filled.notify()

    def note_recorded(
        self, rq_id: str, queue: str, word: str, death: Death | None, *, has_hash: bool = True
    ) -> None:
        """Count a recorded job, and clear its delivery's hash, or keep it for RQ to show a dead job.

        Args:
            word: From `Recorder.record`.
            has_hash: False if a finished job has none.
        """
        if word == "finished":
            self._count(finished=1)
        elif word not in ("interrupted", CANCELLED):
            self._count(failed=1)
        if death is not None and self.books.died(rq_id, death):
            return
        # Dead jobs, and those claimed elsewhere, release no dependents.
        if word != "finished":
            self._ended.unfinished(rq_id)
        elif has_hash:
            self._ended.finished(rq_id, queue)

    def note_refused(self) -> None:
        """Count a job that another worker has, with its hash."""
        self._count(failed=1)

    def _count(self, finished: int = 0, failed: int = 0) -> None:
        # The main thread counts the jobs it records.
        with self._counting:
            self.finished += finished
            self.failed += failed
            self.inbox.journal.count(self.finished, self.failed)

    def _record(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> None:
        if not ended:
            return
        batch = OutcomeBatch(ended)
        batch.record(self.database)
        failpoint(FailurePoint.RECORDED)
        # From here an exception ends the process; its successor reads the journal.
        self._note_finished(batch.finished)
        for job, outcome in batch.alone:
            self._record_one(job, outcome)
        self._end_notices.send(self.database, [job for job, _ in ended])
        self._leave(batch.left)
        for job, _ in ended:
            if job.options.keeps_result:
                self._ended.kept(job.claim.id)
        for job in batch.finished:
            if job.has_hash:
                self._ended.finished(job.rq_id, job.claim.queue)
        self._ended.clear()
        if self.traces is not None:
            self.traces.note((job.claim.id, job.hops()) for job, _ in ended)
        # Last: after a death, hashes of jobs missing in the journal are never cleared.
        for job, _ in ended:
            self.inbox.remove(job)
        self.inbox.room_freed.notify()

    def _leave(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            self._ended.unfinished(job.rq_id)
            if self.overtaken is not None:
                # If its commit lasted, no redelivery would release the dependents.
                self.overtaken.add([PoppedId(job.rq_id, job.claim.queue, job.claim.id, 0)])

    def _note_finished(self, jobs: Sequence[ClaimedJob]) -> None:
        self._count(finished=len(jobs))
        if self.meter is not None and jobs:
            self.meter.count_finished(jobs)
        if is_news([job.claim for job in jobs]):
            log_finished([(job.claim, job.took) for job in jobs], _MORE)
        if completion_hooks.are_wanted():
            for job in jobs:
                self._end_hooks.add(job)

    def _record_one(self, job: ClaimedJob, outcome: Outcome) -> None:
        try:
            word = self._recorder.record(job.claim, outcome)
        except UnavailableError as error:
            event = {"event": "not_recorded", "job_id": job.claim.id}
            log.debug("the outcome of job %d could not be recorded: %s", job.claim.id, error, extra=event)
            self.database.stores.leave(1, error)
            self._ended.unfinished(job.rq_id)
            return
        death = self._recorder.last_death()
        if self.meter is not None:
            self.meter.count_ended(job, word, outcome)
        self.note_recorded(job.rq_id, job.claim.queue, word, death, has_hash=job.has_hash)
        if word == "finished":
            log_finished([(job.claim, job.took)], _MORE)
        if completion_hooks.are_wanted() and (death is not None or word == "finished"):
            self._end_hooks.add(job, death and death.explanation)
