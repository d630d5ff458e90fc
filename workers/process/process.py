"""One worker process: its threads from start to end.

fetcher       RQ's lists ──► claimed ──► waiting
main thread   waiting ──► run ──► outcomes       event loop: the same for `async def` jobs, many at once
              job threads: the same for other jobs, with `--threads`
plain jobs    plain RQ jobs ──► what an extension has started before everything else
finisher      outcomes ──► finished in PostgreSQL, cleared in Redis
leases        the heartbeat: extends the leases of all claimed jobs
progress      progress of jobs ──► Redis; starts with the first report
watchdog      grace period, memory, supervisor, plain jobs
RQ presence   shows tracked jobs to RQ's tools, and keeps RQ's records; commands come in a thread of RQ's own
"""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Callable, Collection

import psycopg

from drain.config import Settings
from drain.errors import DrainError
from drain.tables import leader_progress
from drain.wire import Consumer, Traces
from drain.workers.context import django_connections, reporter
from drain.workers.execution.rq_books import RQBooks
from drain.workers.exits import DONE, FAILED, RECYCLED
from drain.workers.handover.journal import Journal
from drain.workers.handover.recovery import recover
from drain.workers.lease.database import Database
from drain.workers.lease.heartbeat import Heartbeat
from drain.workers.measures.worker_metrics import Meter
from drain.workers.options import WorkOptions
from drain.workers.process.async_loop import AsyncLoop
from drain.workers.process.claimer import Claimer
from drain.workers.process.fetcher import Fetcher
from drain.workers.process.finisher import Finisher
from drain.workers.process.inbox import Inbox
from drain.workers.process.job_runner import JobRunner
from drain.workers.process.job_threads import JobThreads
from drain.workers.process.plain_jobs import NoPlainJobs, handler
from drain.workers.process.rq_commands import tracked_name
from drain.workers.process.rq_presence import RQPresence
from drain.workers.process.shutdown import Shutdown
from drain.workers.process.stale_deliveries import OvertakenDeliveries
from drain.workers.process.stop_signals import StopSignals
from drain.workers.process.watchdog import Watchdog
from drain.workers.stores import QuietWhileAway, Stores

log = logging.getLogger(__name__)

# How often a computing job yields to fetcher and finisher. With Python's 5 ms the inbox ran empty: 1,480 instead of
# 1,650 1 ms jobs/s.
_SWITCH_SECONDS = 0.001
# Between looks for signals.
_LOOK_SECONDS = 0.1
_PRESENCE_SECONDS = 20.0


class Process:
    """Works until a signal, or the end of a burst.

    Args:
        journal: Memory that the supervisor reads; jobs left there are recovered first.
        death: How the last process ended.
        parent: Supervisor's pid; this process ends with it.
    """

    def __init__(
        self,
        settings: Settings,
        options: WorkOptions,
        journal: Journal,
        meter: Meter | None,
        death: str,
        parent: int,
        name: str,
    ) -> None:
        url, redis_url = settings.database_url, settings.required_redis_url
        # First: the process of plain jobs must not inherit the rest.
        plain_jobs = handler().start(redis_url, settings.only_tracked_queues, options, name)
        self._settings, self._journal, self._death = settings, journal, death
        self._shutdown = shutdown = Shutdown(options.grace_seconds, journal)
        self._signals = StopSignals(shutdown)
        self._inbox = inbox = Inbox(options, journal, shutdown)
        self._stores = stores = Stores(self._note_stores)
        database = Database(url, stores=stores)
        reporter.report_to(redis_url, settings.namespace)
        django_connections.forget_inherited()
        self._consumer = consumer = Consumer(
            redis_url,
            settings.namespace,
            options.queues,
            rotates=options.rotates,
            installation=lambda: str(database.ask(leader_progress.installation)),
            only_tracked=options.queues if plain_jobs is NoPlainJobs else settings.only_tracked_queues,
        )
        lost = meter.count_lost_lease if meter else None
        self._heartbeat = heartbeat = Heartbeat(url, inbox.attempts, stores, lost)
        wakeup = shutdown.new_wakeup()
        self._books = books = RQBooks(wakeup.notify)
        traces = Traces(redis_url, settings.namespace) if options.trace else None
        loop = AsyncLoop(inbox, shutdown, options.concurrency)
        self._threads = threads = JobThreads(inbox, shutdown, options.threads)
        overtaken = OvertakenDeliveries(database, consumer, books)
        self._finisher = finisher = Finisher(
            inbox, consumer, Database(url, stores=stores), books, traces, overtaken, meter
        )
        self._fetcher = fetcher = Fetcher(
            inbox,
            shutdown,
            consumer,
            Claimer(inbox, consumer, database, heartbeat, loop, threads, overtaken),
            overtaken,
            database,
            burst=options.burst,
            max_idle_seconds=options.max_idle_seconds,
        )
        self._presence = RQPresence(
            inbox, shutdown, wakeup, consumer, finisher, options, settings, fetcher, tracked_name(name)
        )
        self._plain = plain = plain_jobs(inbox, shutdown, journal, consumer)
        self._watchdog = Watchdog(inbox, shutdown, options, parent, plain)
        self._runner = JobRunner(
            settings, stores, inbox, shutdown, self._signals, consumer, finisher, overtaken, meter
        )

    def run(self) -> int:
        """Work and return the exit code, with all claimed jobs recorded or returned."""
        self._signals.install()
        self._runner.prepare()
        random.seed()
        sys.setswitchinterval(_SWITCH_SECONDS)
        if self._journal.entries():
            recover(self._journal, self._settings, self._death, stores=self._stores, books=self._books)
        self._journal.open()
        logging.getLogger("rq.worker").addFilter(QuietWhileAway(self._stores))
        # RQ's initial clean-up would log jobs on their way, and its scheduler enqueues due ones.
        self._plain.wait_until_ready()
        fetcher = self._start("fetcher", self._fetcher.run)
        finisher = self._start("finisher", self._finisher.run)
        watchdog = self._start("watchdog", self._watchdog.run)
        presence = self._start("RQ presence", self._presence.run)
        plain = self._start("plain jobs", self._plain.run)
        self._threads.start()
        try:
            self._runner.run()
        except BaseException as error:  # noqa: BLE001
            self._shutdown.fail(error)
        self._threads.join()
        _join(plain)
        while self._inbox.running.async_jobs:
            self._inbox.work_added.wait(0.1)
        fetcher.join()
        self._runner.leave_waiting()
        self._finisher.stop()
        finisher.join()
        self._heartbeat.stop()
        reporter.flush()
        self._watchdog.stop()
        self._presence.stop()
        watchdog.join()
        # Runs the application's exception handlers.
        presence.join(_PRESENCE_SECONDS)
        self._plain.end()
        self._consumer.close()
        self._stores.end()
        return self._exit_code()

    def _note_stores(self, away: Collection[str]) -> None:
        self._journal.is_cut_off = bool(away)

    def _start(self, name: str, run: Callable[[], None]) -> threading.Thread:
        def run_or_fail() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001
                self._shutdown.fail(error)

        thread = threading.Thread(target=run_or_fail, name=name, daemon=True)
        thread.start()
        return thread

    def _exit_code(self) -> int:
        error = self._shutdown.error
        if error is None:
            return RECYCLED if self._shutdown.recycled else DONE
        # Otherwise the supervisor would take the exit code for a job's.
        self._journal.resigned = True
        if isinstance(error, DrainError):
            log.error("%s", error, extra={"event": "failed"})
        elif isinstance(error, psycopg.errors.InsufficientPrivilege):
            text = "PostgreSQL refused: %s; `drain roles` prints the rights that a worker needs"
            log.error(text, error.diag.message_primary, extra={"event": "failed"})
        else:
            log.error("a worker process failed", exc_info=error, extra={"event": "failed"})
        return FAILED


def _join(thread: threading.Thread) -> None:
    """Wait for a thread, while the main thread handles signals."""
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
