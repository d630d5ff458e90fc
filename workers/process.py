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
from drain.crashpoints import CrashPoint, reached
from drain.errors import DrainError, UnavailableError
from drain.transitions import inflight, state
from drain.wire import Intake, Taken
from workers import attempt, isolation, plain, registry
from workers.current import CurrentJob
from workers.database import Database
from workers.entry import Worker
from workers.finisher import Finisher
from workers.hand import Hand, Held, Unclaimed
from workers.housekeeping import Housekeeping
from workers.inheritance import settle
from workers.journal import KILL_AFTER_SECONDS, Journal
from workers.keeper import Keeper
from workers.loop import Loop
from workers.options import Plain, WorkOptions
from workers.outcome import Finished, Outcome, Settled
from workers.plain_worker import tracked_name
from workers.rq_side import RQSide
from workers.stores import QuietWhileAway, Stores
from workers.taker import Taker

log = logging.getLogger(__name__)

DONE, FAILED, RECYCLED = 0, 1, 75
# How long a job that computes may keep the interpreter to itself while the taker and the finisher wait for it. With
# Python's 5 ms, at each of their steps, jobs of a millisecond ran out: 1,480 a second then, 1,650 so.
_TURN_SECONDS = 0.001
# A signal ends the main thread's sleep, but not one that begins a moment later; its handler runs in no other thread.
_LOOK_SECONDS = 1.0
_ISOLATED_MARGIN_SECONDS = 10.0
# How long RQ's books may take at the end of the process.
_RQ_SIDE_SECONDS = 20.0
# Asked after each job; the function of the module `signal` makes an enum of the answer, or fails to, in a microsecond.
signal_handler: Callable[[int], object] = _signal.getsignal
SIGTERM = int(signal.SIGTERM)
# What the supervisor sends when there is no more time.
STOP_NOW = isolation.STOP_NOW


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
        rq_process = plain.start(settings.required_redis_url, settings.only_tracked_queues, options, name)
        self._settings = settings
        self._options = options
        self._journal = journal
        self._death = death
        url, redis_url = settings.database_url, settings.required_redis_url
        self._hand = hand = Hand(options, journal)
        self._stores = stores = Stores(self._tell_of_stores)
        self._database = Database(url, stores=stores)
        refuses = options.plain.mode is Plain.REFUSE
        self._intake = Intake(
            redis_url,
            settings.namespace,
            options.queues,
            installation=lambda: str(self._database.ask(state.installation)),
            only_tracked=options.queues if refuses else settings.only_tracked_queues,
        )
        self._keeper = Keeper(url, hand.leases, stores)
        self._loop = Loop(hand, url, options.concurrency)
        self._finisher = Finisher(hand, self._intake, Database(url, stores=stores))
        self._taker = Taker(
            hand,
            self._intake,
            self._database,
            self._keeper,
            self._loop,
            self._finisher.books,
            burst=options.burst,
            max_idle_seconds=options.max_idle_seconds,
        )
        self._rq = RQSide(
            hand, self._intake, self._finisher, options, redis_url, self._taker, tracked_name(name)
        )
        self._plain = plain.PlainJobs(rq_process, hand, self._intake)
        self._housekeeping = Housekeeping(hand, options, parent, self._plain)
        self._handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {}
        self._alarm = attempt.StandingAlarm()
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
        taker = self._thread("taker", self._taker.run)
        finisher = self._thread("finisher", self._finisher.run)
        housekeeping = self._thread("housekeeping", self._housekeeping.run)
        rq_side = self._thread("RQ's tools", self._rq.run)
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001
            self._hand.fail(error)
        while self._hand.running_async:
            self._hand.chores.wait(0.1)
        taker.join()
        self._finisher.ended = True
        self._hand.done.ring()
        self._hand.full.ring()
        finisher.join()
        self._keeper.stop()
        self._housekeeping.ended = self._rq.ended = True
        self._hand.chores.ring()
        self._hand.told.ring()
        housekeeping.join()
        # An exception handler of somebody else's runs there.
        rq_side.join(_RQ_SIDE_SECONDS)
        self._plain.end()
        self._intake.close()
        self._stores.end()
        return self._exit_code()

    def _tell_of_stores(self, away: Collection[str]) -> None:
        self._journal.is_cut_off = bool(away)

    def _exit_code(self) -> int:
        error = self._hand.error
        if error is None:
            return RECYCLED if self._hand.recycled else DONE
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
            self._hand.stop()

        def stop_now(_signal: int, _frame: FrameType | None) -> None:
            self._hand.stop_now()

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
                self._hand.fail(error)

        thread = threading.Thread(target=go_on, name=name, daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        hand = self._hand
        while not hand.stopping:
            try:
                item = hand.waiting.popleft()
            except IndexError:
                hand.work.wait(_LOOK_SECONDS)
                continue
            hand.began_at = monotonic()
            hand.running = item
            if isinstance(item, Held):
                self._run(item)
            else:
                self._run_unclaimed(item)

    def _run(self, held: Held) -> None:
        hand, claim, lease = self._hand, held.claim, held.lease
        if lease.lost:
            hand.running = None
            hand.forget(held)
            hand.room.ring()
            return
        began = hand.began_at
        current = CurrentJob(claim, lease, self._settings.database_url)
        hand.journal.begin(held.slot, began + _longest(current))
        result = self._attempt(current)
        reached(CrashPoint.RAN)
        if isinstance(result, Finished | Settled):
            hand.journal.finish(held.slot)
        else:
            hand.journal.end(held.slot)
        if signal_handler(SIGTERM) is not self._handlers[signal.SIGTERM]:
            self._keep_signals()
        hand.running = None
        hand.end(held, result, monotonic() - began)

    def _run_unclaimed(self, item: Unclaimed) -> None:
        """A job that is to be alone is claimed only now; a plain RQ job is RQ's to run."""
        hand, taken = self._hand, item.taken
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
                    self._intake.give_back([(taken.queue, taken.rq_id)])
        self._keep_signals()
        hand.running = None
        hand.singly.discard(item)
        hand.end_unclaimed(monotonic() - hand.began_at)

    def _run_if_plain(self, taken: Taken) -> None:
        """Run a plain RQ job whose id looks like ours; one that still waits in the list of another queue is let be."""
        alone, job_id = self._alone, taken.job_id
        if alone is None or job_id is None:
            return
        if job_id not in alone.database.ask(lambda c: inflight.left_to_claim(c, [job_id])):
            plain, awaited = self._intake.sorted_out([taken])
            for each in plain:
                self._plain.execute(each)
            self._taker.release_once_finished(awaited)

    def _attempt_alone(self, item: Unclaimed, current: CurrentJob) -> Outcome:
        journal, lease = self._journal, current._lease
        item.lease = lease
        slot = journal.take(lease.claim.id, lease.claim.fencing_token, item.taken.delivery)
        journal.begin(slot, monotonic() + _longest(current))
        try:
            return self._attempt(current)
        finally:
            journal.clear(slot)

    def _attempt(self, current: CurrentJob) -> Outcome:
        isolated = registry.options(current.name).isolated
        return isolation.run(current) if isolated else attempt.run(current, self._alarm)


def _longest(current: CurrentJob) -> float:
    """For how many seconds the job may run before this process is killed for it."""
    # The child of an isolated job is killed by its parent, which comes first.
    margin = _ISOLATED_MARGIN_SECONDS if registry.options(current.name).isolated else 0.0
    return current._lease.claim.timeout_seconds + KILL_AFTER_SECONDS + margin


_mask = threading.local()


def _hold_signals() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, STOP_NOW))


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _let_go_of_signals() -> None:
    for number in (signal.SIGTERM, STOP_NOW):
        signal.signal(number, signal.SIG_DFL)
    _release_signals()
