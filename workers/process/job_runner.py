"""The main thread: one tracked job at a time."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from time import monotonic

from drain.config import Settings
from drain.errors import UnavailableError
from drain.tables import claims
from drain.wire import Consumer, PoppedId
from drain.workers.context.current import Attempt
from drain.workers.entry import Worker
from drain.workers.errors import WorkerStoppedError
from drain.workers.execution import isolation
from drain.workers.execution.alarm import StandingAlarm
from drain.workers.execution.attempt import run as run_here
from drain.workers.execution.decision import DEAD
from drain.workers.execution.outcome import Interrupted, Outcome, describe
from drain.workers.measures.worker_metrics import Meter, Run
from drain.workers.process.finisher import Finisher
from drain.workers.process.inbox import Inbox, longest_seconds
from drain.workers.process.jobs import ClaimedJob, PendingJob
from drain.workers.process.sharing import Sharing
from drain.workers.process.shutdown import Shutdown
from drain.workers.process.stale_deliveries import OvertakenDeliveries
from drain.workers.process.stop_signals import StopSignals
from drain.workers.stores import Stores

log = logging.getLogger(__name__)

# Longest sleep: a signal just before it does not end it, and its handler runs only here.
_LOOK_SECONDS = 1.0


class JobRunner:
    """Runs the inbox's jobs one at a time until shutdown."""

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        inbox: Inbox,
        shutdown: Shutdown,
        signals: StopSignals,
        consumer: Consumer,
        finisher: Finisher,
        overtaken: OvertakenDeliveries,
        meter: Meter | None = None,
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._inbox = inbox
        self._shutdown = shutdown
        self._signals = signals
        self._consumer = consumer
        self._finisher = finisher
        self._overtaken = overtaken
        self._meter = meter
        self._alarm = StandingAlarm()
        self._alone: Worker | None = None
        self._sharing = Sharing(inbox, settings.database_url)

    def prepare(self) -> None:
        """Install the interrupting handler in the main thread."""
        self._alarm.install()

    def run(self) -> None:
        """Run jobs until shutdown."""
        inbox, shutdown, sharing = self._inbox, self._shutdown, self._sharing
        while not shutdown.requested:
            item = inbox.begin_next()
            if not sharing.admits(item):
                sharing.commit()
            if item is None:
                inbox.work_added.wait(_LOOK_SECONDS)
            elif isinstance(item, ClaimedJob):
                self._run(item)
            else:
                self._run_pending(item)
        sharing.commit()
        sharing.close()

    def leave_waiting(self) -> None:
        """Record jobs that waited to run again as interrupted; without a fetcher, none else are left."""
        error = describe(WorkerStoppedError("its worker stopped before it ran again"))
        while isinstance(job := self._inbox.first_waiting, ClaimedJob):
            self._inbox.waiting.popleft()
            self._inbox.add_outcome(job, Interrupted(error, job.options), 0.0, is_counted=True)

    def _run(self, job: ClaimedJob) -> None:
        inbox = self._inbox
        if job.lease.lost:
            inbox.running.end()
            inbox.drop(job)
            return
        if self._sharing.admits(job):
            self._sharing.begin(job)
        began = monotonic()
        inbox.note_begin(job, began)
        result = self._attempt(job)
        self._signals.restore_if_replaced()
        inbox.running.end()
        self._sharing.end(job, result, monotonic() - began)

    def _run_pending(self, item: PendingJob) -> None:
        inbox, popped = self._inbox, item.popped
        assert popped.job_id is not None  # noqa: S101  (plain jobs are not in this thread's list)
        if self._alone is None:
            self._alone = Worker(self._settings, self._stores)
        try:
            attempt_alone = partial(self._attempt_alone, item)
            word = self._alone.execute(
                popped.job_id, attempt_alone, delivery=popped.delivery, queue=popped.queue
            )
            if word != "refused":
                death = self._alone.recorder.last_death()
                self._measure(item, self._alone.unrun, word)
                self._finisher.note_recorded(popped.rq_id, popped.queue, word, death)
            else:
                self._finisher.note_refused()
                self._accept_if_plain(popped)
            if item.attempt is not None and item.attempt.options.keeps_result:
                # Waiting callers also poll the table.
                with suppress(UnavailableError):
                    self._consumer.tell([popped.job_id])
        except UnavailableError as error:
            log.debug(
                "job %d could not be claimed or recorded: %s",
                popped.job_id,
                error,
                extra={"event": "not_recorded", "job_id": popped.job_id},
            )
            self._stores.leave(1, error)
            with suppress(UnavailableError):
                self._consumer.give_back([(popped.queue, popped.rq_id)])
        self._signals.restore()
        inbox.running.end()
        inbox.end_pending(item, monotonic() - inbox.running.began_at)

    def _accept_if_plain(self, popped: PoppedId) -> None:
        """Accept a plain RQ job whose id looks like ours; one of another queue's list stays there."""
        alone, job_id = self._alone, popped.job_id
        if alone is None or job_id is None:
            return
        if job_id not in alone.database.ask(lambda c: claims.left_to_claim(c, {job_id: popped.delivery})):
            plain, overtaken = self._consumer.sort_unclaimed([popped])
            for each in plain:
                self._inbox.plain.add(self._inbox.add_pending(each, monotonic()))
            self._overtaken.add(overtaken)

    def _attempt_alone(self, item: PendingJob, attempt: Attempt) -> Outcome:
        journal = self._inbox.journal
        item.attempt = attempt
        slot = journal.add(attempt.claim, item.popped.delivery)
        began = monotonic()
        journal.begin(slot, began + longest_seconds(attempt))
        try:
            item.outcome = self._attempt(attempt)
        finally:
            item.took = monotonic() - began
            journal.clear(slot)
        return item.outcome

    def _measure(self, item: PendingJob, unrun: Attempt | None, word: str) -> None:
        meter, attempt = self._meter, item.attempt
        if meter is None:
            return
        if unrun is not None and unrun.claim.expired and word == DEAD:
            meter.count_expired(_run_of(unrun, 0.0))
        elif attempt is not None and item.outcome is not None:
            if attempt.lease.lost and not attempt.lease.cancelled:
                meter.count_lost_lease()
            meter.count_ended(_run_of(attempt, item.took), word, item.outcome)

    def _attempt(self, attempt: Attempt) -> Outcome:
        return isolation.run(attempt) if attempt.options.isolated else run_here(attempt, self._alarm)


def _run_of(attempt: Attempt, took: float) -> Run:
    return Run(attempt.claim, attempt.job, attempt.options, 0.0, 0.0, took)
