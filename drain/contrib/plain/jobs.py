"""Plain RQ jobs in a worker process."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import suppress
from time import monotonic

from drain.contrib.plain.rq_process import RQProcess
from drain.errors import UnavailableError
from drain.wire import Consumer, PoppedId
from drain.workers.exits import STOP_NOW
from drain.workers.handover.journal import Journal
from drain.workers.process.inbox import Inbox
from drain.workers.process.shutdown import Shutdown

log = logging.getLogger(__name__)

# Between checks for shutdown while waiting for RQ's worker.
_LOOK_SECONDS = 1.0
_READY_SECONDS = 5.0
# For an idle RQ process to end after its channel closes, and again after SIGTERM, before it is killed.
_END_SECONDS = 5.0
# From the signal to stop now until SIGKILL.
_KILL_SECONDS = 5.0


class RQJobs:
    """Runs plain jobs in the RQ process; the watchdog calls `check`.

    Args:
        shutdown: Requested when the RQ process ends.
        journal: Reports to the supervisor that a plain job runs.
    """

    # One thing: its thread and the watchdog share the lock, the running job and the end of the process.
    def __init__(
        self,
        process: RQProcess,
        inbox: Inbox,
        shutdown: Shutdown,
        journal: Journal,
        consumer: Consumer,
    ) -> None:
        self._inbox = inbox
        self._process = process
        self._shutdown = shutdown
        self._journal = journal
        self._consumer = consumer
        # Held while receiving messages.
        self._receiving = threading.Lock()
        self._running: PoppedId | None = None
        self._has_ended_channel = self._has_warned = False
        self._kill_at = float("inf")

    @property
    def pid(self) -> int:
        """Id of the RQ process; 0 once ended."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait briefly until RQ's worker is ready or waits for Redis."""
        process, until = self._process, monotonic() + _READY_SECONDS
        with self._receiving:
            try:
                while not (process.has_answered or self._shutdown.requested) and (
                    (left := until - monotonic()) > 0
                ):
                    process.receive(min(left, _LOOK_SECONDS))
            except EOFError:
                self._handle_end(process)

    def run(self) -> None:
        """Run jobs one at a time until shutdown."""
        inbox = self._inbox
        while not self._shutdown.requested:
            job = inbox.plain.begin_next()
            if job is None:
                inbox.plain.added.wait()
            else:
                self._execute(job.popped)
                inbox.end_plain(job)

    def _execute(self, popped: PoppedId) -> None:
        """Let RQ run a job; one not begun when RQ's process ends is given back."""
        process, is_done = self._process, False
        if not process.pid:
            self._give_back(popped)
            return
        with self._receiving:
            try:
                if self._wait_for_worker(process):
                    self._running, self._journal.runs_plain_job = popped, True
                    process.run_job(popped.queue, popped.rq_id)
                    while not process.receive(_LOOK_SECONDS):
                        pass
                    is_done = True
            except EOFError:
                self._handle_end(process)
            finally:
                self._running, self._journal.runs_plain_job = None, False
        if not is_done:
            self._give_back(popped)

    def _wait_for_worker(self, process: RQProcess) -> bool:
        """Wait briefly for RQ's worker, since another process may have one."""
        until = monotonic() + _LOOK_SECONDS
        while not process.is_ready and not self._shutdown.requested and monotonic() < until:
            process.receive(_LOOK_SECONDS)
        return process.is_ready and not self._shutdown.requested

    def _give_back(self, popped: PoppedId) -> None:
        try:
            if not self._consumer.give_back_unbegun(popped) and not self._shutdown.is_immediate:
                log.warning(
                    "RQ's job %s of queue %s did not end: RQ regards it as abandoned",
                    popped.rq_id,
                    popped.queue,
                    extra={"event": "plain_job_abandoned"},
                )
        except UnavailableError as error:
            log.warning("RQ's job %s is left to RQ: %s", popped.rq_id, error, extra={"event": "down"})

    def _handle_end(self, process: RQProcess) -> None:
        death = process.reap()
        if process.was_shut_down:
            self._shutdown.resign()
        elif not self._shutdown.requested:
            log.error(
                "the process of plain RQ jobs %s: a new worker process takes over",
                death,
                extra={"event": "rq_process_died"},
            )
            self._shutdown.recycle()
        with suppress(UnavailableError):
            self._consumer.presence.forget_worker(process.name, process.first_pid, process.queues)

    def check(self) -> None:
        """Notice the RQ process' end; at shutdown, end its channel and job."""
        process, shutdown = self._process, self._shutdown
        if not process.pid:
            return
        if shutdown.requested and not self._has_ended_channel:
            self._has_ended_channel = True
            # A job sent before still runs.
            process.channel.end()
        running = self._running
        if running is None:
            self._poll(process)
        elif monotonic() > self._kill_at:
            process.signal(signal.SIGKILL)
        elif shutdown.is_immediate and self._kill_at == float("inf"):
            self._kill_at = monotonic() + _KILL_SECONDS
            log.warning(
                "RQ's job %s of queue %s is ended because this worker stops now; RQ regards it as abandoned",
                running.rq_id,
                running.queue,
                extra={"event": "plain_job_ended"},
            )
            process.signal(STOP_NOW)
        elif monotonic() >= shutdown.interrupt_at and not self._has_warned:
            self._has_warned = True
            log.warning(
                "RQ's job %s of queue %s is waited for, as RQ's own workers do; a second signal ends it",
                running.rq_id,
                running.queue,
                extra={"event": "plain_job_runs"},
            )

    def _poll(self, process: RQProcess) -> None:
        if self._receiving.acquire(blocking=False):
            try:
                process.receive(0)
            except EOFError:
                self._handle_end(process)
            finally:
                self._receiving.release()

    def end(self) -> None:
        """End the idle RQ process and wait for it."""
        process = self._process
        process.channel.end()
        with self._receiving:
            for number in (0, signal.SIGTERM, signal.SIGKILL):
                if not process.pid:
                    break
                process.signal(number)
                self._wait_for_end(process)
        process.channel.close()

    def _wait_for_end(self, process: RQProcess) -> None:
        until = monotonic() + _END_SECONDS
        try:
            while (left := until - monotonic()) > 0:
                process.receive(left)
        except EOFError:
            self._handle_end(process)
