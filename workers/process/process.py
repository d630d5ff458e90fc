"""One worker process, from its first thread to its last: its main thread runs the jobs.

taker         RQ's lists ──► claimed ──► waiting
main thread   waiting ──► run ──► ended        loop: the same for `async def` jobs, many at once
              plain RQ jobs ──► RQ process, which is forked before all else
finisher      ended ──► finished in Postgres, cleared in Redis
keeper        extends the leases of all that are held
housekeeping  what RQ's tools see; grace, memory, parent
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from time import monotonic
from types import FrameType

import psycopg

from drain.config import Settings
from drain.errors import DrainError, UnavailableError
from drain.tables import claims, leader_progress
from drain.wire import Consumer, PoppedId
from workers.context.current import Attempt
from workers.entry import Worker
from workers.execution import isolation
from workers.execution.alarm import StandingAlarm
from workers.execution.attempt import run as run_here
from workers.execution.outcome import Outcome
from workers.exits import DONE, FAILED, RECYCLED, STOP_NOW
from workers.handover.journal import Journal
from workers.handover.recovery import settle
from workers.lease.database import Database
from workers.lease.heartbeat import Heartbeat
from workers.options import Plain, WorkOptions
from workers.plain.rq_process import tracked_name
from workers.process import plain_jobs
from workers.process.async_loop import AsyncLoop
from workers.process.fetcher import Fetcher
from workers.process.finisher import Finisher
from workers.process.inbox import ClaimedJob, Inbox, PendingJob, longest_seconds
from workers.process.rq_presence import RQPresence
from workers.process.watchdog import Watchdog
from workers.stores import QuietWhileAway, Stores

log = logging.getLogger(__name__)

# How long a job that computes may keep the interpreter to itself while the taker and the finisher wait for it. With
# Python's 5 ms, at each of their steps, jobs of a millisecond ran out: 1,480 a second then, 1,650 so.
_TURN_SECONDS = 0.001
# A signal ends the main thread's sleep, but not one that begins a moment later; its handler runs in no other thread.
_LOOK_SECONDS = 1.0
# How long RQ's books may take at the end of the process.
_RQ_SIDE_SECONDS = 20.0
# Asked after each job; the function of the module `signal` makes an enum of the answer, or fails to, in a microsecond.
signal_handler: Callable[[int], object] = _signal.getsignal
SIGTERM = int(signal.SIGTERM)


class Process:
    """Works until it is told to stop, or has nothing left to do in a burst.

    Args:
        settings: Where.
        options: How.
        journal: Where what it holds can be read after its death; what the last process has left there is its
            first work.
        death: How the last process ended.
        parent: Id of the supervisor, without which this process ends.
        name: Of RQ's worker, for RQ's tools.
    """

    def __init__(
        self,
        settings: Settings,
        options: WorkOptions,
        journal: Journal,
        death: str,
        parent: int,
        name: str,
    ) -> None:
        rq_process = plain_jobs.start(
            settings.required_redis_url, settings.only_tracked_queues, options, name
        )
        self._settings = settings
        self._options = options
        self._journal = journal
        self._death = death
        url, redis_url = settings.database_url, settings.required_redis_url
        self._inbox = inbox = Inbox(options, journal)
        self._stores = stores = Stores(self._tell_of_stores)
        self._database = Database(url, stores=stores)
        refuses = options.plain.mode is Plain.REFUSE
        self._consumer = Consumer(
            redis_url,
            settings.namespace,
            options.queues,
            installation=lambda: str(self._database.ask(leader_progress.installation)),
            only_tracked=options.queues if refuses else settings.only_tracked_queues,
        )
        self._heartbeat = Heartbeat(url, inbox.attempts, stores)
        self._loop = AsyncLoop(inbox, options.concurrency)
        self._finisher = Finisher(inbox, self._consumer, Database(url, stores=stores))
        self._fetcher = Fetcher(
            inbox,
            self._consumer,
            self._database,
            self._heartbeat,
            self._loop,
            self._finisher.books,
            burst=options.burst,
            max_idle_seconds=options.max_idle_seconds,
        )
        self._rq = RQPresence(
            inbox, self._consumer, self._finisher, options, redis_url, self._fetcher, tracked_name(name)
        )
        self._plain = plain_jobs.PlainJobs(rq_process, inbox, self._consumer)
        self._watchdog = Watchdog(inbox, options, parent, self._plain)
        self._handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {}
        self._alarm = StandingAlarm()
        self._alone: Worker | None = None

    def run(self) -> int:
        """Work; returns the exit code.

        What is held at the end has been recorded or given back.
        """
        self._take_signals()
        self._alarm.install()
        random.seed()
        sys.setswitchinterval(_TURN_SECONDS)
        if self._journal.entries():
            settle(
                self._journal,
                self._settings,
                self._death,
                stores=self._stores,
                books=self._finisher.books,
            )
        self._journal.sit_down()
        logging.getLogger("rq.worker").addFilter(QuietWhileAway(self._stores))
        # RQ's clean-up at the start would note a job that is on its way, and its scheduler enqueues what is due.
        self._plain.wait_until_ready()
        fetcher = self._thread("fetcher", self._fetcher.run)
        finisher = self._thread("finisher", self._finisher.run)
        watchdog = self._thread("watchdog", self._watchdog.run)
        rq_presence = self._thread("RQ's tools", self._rq.run)
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001
            self._inbox.fail(error)
        while self._inbox.running_async:
            self._inbox.chores.wait(0.1)
        fetcher.join()
        self._finisher.ended = True
        self._inbox.done.ring()
        self._inbox.full.ring()
        finisher.join()
        self._heartbeat.stop()
        self._watchdog.ended = self._rq.ended = True
        self._inbox.chores.ring()
        self._inbox.told.ring()
        watchdog.join()
        # An exception handler of somebody else's runs there.
        rq_presence.join(_RQ_SIDE_SECONDS)
        self._plain.end()
        self._consumer.close()
        self._stores.end()
        return self._exit_code()

    def _tell_of_stores(self, away: Collection[str]) -> None:
        self._journal.is_cut_off = bool(away)

    def _exit_code(self) -> int:
        error = self._inbox.error
        if error is None:
            return RECYCLED if self._inbox.recycled else DONE
        # Whoever exits with this code otherwise is a job.
        self._journal.resigned = True
        if isinstance(error, DrainError):
            log.error("%s", error)
        elif isinstance(error, psycopg.errors.InsufficientPrivilege):
            log.error(
                "PostgreSQL refused: %s; `drain roles` prints what a worker needs", error.diag.message_primary
            )
        else:
            log.error("a worker process cannot go on", exc_info=error, extra={"event": "failed"})
        return FAILED

    def _take_signals(self) -> None:
        def stop(_signal: int, _frame: FrameType | None) -> None:
            self._inbox.stop()

        def stop_now(_signal: int, _frame: FrameType | None) -> None:
            self._inbox.stop_now()

        # A service manager sends it to all processes, and the supervisor passes its own on: twice is once.
        self._handlers = {signal.SIGTERM: stop, STOP_NOW: stop_now}
        self._keep_signals()
        # Those are of no use to what a job forks, which is to end when it is told to, however soon that is: Python
        # forgets a signal that comes while it tidies up after the fork, so it is held back until then.
        os.register_at_fork(
            before=_hold_signals, after_in_parent=_release_signals, after_in_child=_let_go_of_signals
        )
        # A terminal sends it to all; the supervisor passes it on as SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _keep_signals(self) -> None:
        """Put our handlers in their places; a job may have replaced them."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    def _thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        def go_on() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001
                self._inbox.fail(error)

        thread = threading.Thread(target=go_on, name=name, daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        inbox = self._inbox
        while not inbox.stopping:
            try:
                item = inbox.waiting.popleft()
            except IndexError:
                inbox.work.wait(_LOOK_SECONDS)
                continue
            inbox.began_at = monotonic()
            inbox.running = item
            if isinstance(item, ClaimedJob):
                self._run(item)
            else:
                self._run_unclaimed(item)

    def _run(self, held: ClaimedJob) -> None:
        inbox = self._inbox
        if held.lease.lost:
            inbox.running = None
            inbox.forget(held)
            inbox.room.ring()
            return
        began = inbox.began_at
        inbox.begin(held, began)
        result = self._attempt(held)
        if signal_handler(SIGTERM) is not self._handlers[signal.SIGTERM]:
            self._keep_signals()
        inbox.running = None
        inbox.end(held, result, monotonic() - began)

    def _run_unclaimed(self, item: PendingJob) -> None:
        """A job that is to be alone is claimed only now; a plain RQ job is RQ's to run."""
        inbox, taken = self._inbox, item.taken
        if taken.job_id is None:
            self._plain.execute(taken)
        else:
            if self._alone is None:
                self._alone = Worker(self._settings, self._stores)
            try:
                attempt_alone = partial(self._attempt_alone, item)
                word = self._alone.execute(taken.job_id, attempt_alone, queue=taken.queue)
                if word != "refused":
                    self._finisher.end(taken.rq_id, taken.queue, word, self._alone.recorder.last_death())
                else:
                    self._finisher.leave()
                    self._run_if_plain(taken)
            except UnavailableError as error:
                log.debug("job %d could not be claimed or recorded: %s", taken.job_id, error)
                self._stores.leave(1, error)
                with suppress(UnavailableError):
                    self._consumer.give_back([(taken.queue, taken.rq_id)])
        self._keep_signals()
        inbox.running = None
        inbox.singly.discard(item)
        inbox.end_unclaimed(monotonic() - inbox.began_at)

    def _run_if_plain(self, taken: PoppedId) -> None:
        """Run a plain RQ job whose id looks like ours; one that still waits in the list of another queue is let be."""
        alone, job_id = self._alone, taken.job_id
        if alone is None or job_id is None:
            return
        if job_id not in alone.database.ask(lambda c: claims.left_to_claim(c, [job_id])):
            jobs, awaited = self._consumer.sort_unclaimed([taken])
            for each in jobs:
                self._plain.execute(each)
            self._fetcher.release_once_finished(awaited)

    def _attempt_alone(self, item: PendingJob, attempt: Attempt) -> Outcome:
        journal, claim = self._journal, attempt.claim
        item.attempt = attempt
        slot = journal.take(claim.id, claim.fencing_token, item.taken.delivery)
        journal.begin(slot, monotonic() + longest_seconds(attempt))
        try:
            return self._attempt(attempt)
        finally:
            journal.clear(slot)

    def _attempt(self, attempt: Attempt) -> Outcome:
        return isolation.run(attempt) if attempt.options.isolated else run_here(attempt, self._alarm)


_mask = threading.local()


def _hold_signals() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, STOP_NOW))


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _let_go_of_signals() -> None:
    for number in (signal.SIGTERM, STOP_NOW):
        signal.signal(number, signal.SIG_DFL)
    _release_signals()
