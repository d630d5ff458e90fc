"""Plain RQ jobs, as a worker process sees them: it hands each to the RQ process, and waits for its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from drain.errors import UnavailableError
from drain.wire import Consumer, PoppedId
from workers.exits import STOP_NOW, ended
from workers.options import Plain, WorkOptions
from workers.plain.channel import BYE, READY, Line
from workers.plain.rq_process import be_the_rq_process
from workers.process.inbox import Inbox

log = logging.getLogger(__name__)

# How long the wait for an answer lasts before it is looked whether this process is to stop.
_LOOK_SECONDS = 1.0
# How long the start of RQ's worker is waited for.
_READY_SECONDS = 5.0
# An RQ process that is to end, and runs nothing, is told so for so long, then by SIGTERM for as long, then killed.
_END_SECONDS = 5.0
# After RQ's cold shutdown.
_KILL_SECONDS = 5.0


class RQProcess:
    """The process that this one has forked.

    Attributes:
        pid: Its id; 0 once it has ended.
        was: Its id.
        name: Of RQ's worker.
        line: To it.
    """

    def __init__(self, redis_url: str, queues: Sequence[str], options: WorkOptions, name: str) -> None:
        ours, theirs = socket.socketpair()
        # Until the child has handlers of its own, a signal would leave it as if it were this process.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            be_the_rq_process(Line(theirs), redis_url, queues, options, name)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        self.was, self.name, self.line = self.pid, name, Line(ours)
        self.queues = queues

    def signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def bury(self) -> str:
        """Wait for the process whose line is closed; returns how it has ended, in words."""
        pid, self.pid = self.pid, 0
        try:
            return ended(os.waitpid(pid, 0)[1])
        # A job may have waited for all children.
        except ChildProcessError:
            return "has ended"


def start(
    redis_url: str, only_tracked: Sequence[str] | frozenset[str], options: WorkOptions, name: str
) -> RQProcess | None:
    """Fork the RQ process, if plain jobs run in any of the queues; to be called before any thread is started."""
    queues = [queue for queue in options.queues if queue not in only_tracked]
    if options.plain.mode is Plain.REFUSE or not queues:
        return None
    return RQProcess(redis_url, queues, options, name)


class PlainJobs:
    """Hands plain jobs to the RQ process, for the main thread; `look` is for the housekeeping.

    Args:
        process: The RQ process; None where no plain job is taken.
        hand: What the worker process has in hand.
        intake: Where the ids were taken from.
    """

    def __init__(self, process: RQProcess | None, inbox: Inbox, consumer: Consumer) -> None:
        self._process = process
        self._inbox = inbox
        self._consumer = consumer
        # Held by the thread that listens.
        self._listening = threading.Lock()
        self._running: PoppedId | None = None
        self._knows_more = self._is_ready = self._was_shut_down = False
        self._has_hung_up = self._has_told = False
        self._kill_at = float("inf")

    @property
    def pid(self) -> int:
        """Id of the RQ process; 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    def wait_until_ready(self) -> None:
        """Wait until RQ's worker waits for jobs, or for Redis."""
        process, until = self._process, monotonic() + _READY_SECONDS
        if process is not None:
            with self._listening:
                try:
                    while (
                        not (self._knows_more or self._inbox.stopping) and (left := until - monotonic()) > 0
                    ):
                        self._hears(process, min(left, _LOOK_SECONDS))
                except EOFError:
                    self._gone(process)

    def execute(self, taken: PoppedId) -> None:
        """Let RQ run a job, and wait for its end, however long that takes.

        A job with which RQ has not begun as its process ends is given back.
        """
        process, is_done = self._process, False
        if process is None or not process.pid:
            self._give_back(taken)
            return
        with self._listening:
            try:
                if self._waits():
                    self._begin(process, taken)
                    while not self._hears(process):
                        pass
                    is_done = True
            except EOFError:
                self._gone(process)
            finally:
                self._running, self._inbox.journal.is_patient = None, False
        if not is_done:
            self._give_back(taken)

    def _waits(self) -> bool:
        """Whether RQ's worker is ready; one that cannot start is not waited for while tracked jobs may wait behind."""
        process, until = self._process, monotonic() + _LOOK_SECONDS
        while process is not None and not self._is_ready and not self._inbox.stopping and monotonic() < until:
            self._hears(process)
        return self._is_ready and not self._inbox.stopping

    def _begin(self, process: RQProcess, taken: PoppedId) -> None:
        self._is_ready = False
        self._running, self._inbox.journal.is_patient = taken, True
        process.line.say(taken.queue, taken.rq_id)

    def _hears(self, process: RQProcess, seconds: float = _LOOK_SECONDS) -> bool:
        """Listen for a moment; returns whether RQ's worker is ready for the next job."""
        words = process.line.hear(seconds)
        if words is None:
            return False
        self._knows_more = True
        if words[0] == READY:
            process.name = words[1]
            self._is_ready = True
        elif words[0] == BYE:
            self._was_shut_down = True
        return self._is_ready

    def _give_back(self, taken: PoppedId) -> None:
        try:
            if not self._consumer.give_back_unbegun(taken) and not self._inbox.is_to_stop_now:
                log.warning(
                    "RQ's job %s of queue %s did not end: RQ takes it for abandoned", taken.rq_id, taken.queue
                )
        except UnavailableError as error:
            log.warning("RQ's job %s is left to RQ: %s", taken.rq_id, error, extra={"event": "down"})

    def _gone(self, process: RQProcess) -> None:
        death = process.bury()
        inbox = self._inbox
        if self._was_shut_down:
            inbox.resign()
        elif not inbox.stopping:
            log.error(
                "the process of plain RQ jobs %s: a new worker process takes over",
                death,
                extra={"event": "rq_process_died"},
            )
            inbox.recycle()
        with suppress(UnavailableError):
            self._consumer.presence.forget_worker(process.name, process.was, process.queues)

    def look(self) -> None:
        """Look whether the RQ process is still there, and what is to become of its job as this process stops."""
        process, inbox = self._process, self._inbox
        if process is None or not process.pid:
            return
        if inbox.stopping and not self._has_hung_up:
            self._has_hung_up = True
            # What has been said until now is still done.
            process.line.hang_up()
        running = self._running
        if running is None:
            self._listen_briefly(process)
        elif monotonic() > self._kill_at:
            process.signal(signal.SIGKILL)
        elif inbox.is_to_stop_now and self._kill_at == float("inf"):
            self._kill_at = monotonic() + _KILL_SECONDS
            log.warning(
                "RQ's job %s of queue %s is ended, as this worker is to stop now; RQ takes it for abandoned",
                running.rq_id,
                running.queue,
                extra={"event": "plain_job_ended"},
            )
            process.signal(STOP_NOW)
        elif monotonic() >= inbox.stop_at and not self._has_told:
            self._has_told = True
            log.warning(
                "RQ's job %s of queue %s is waited for, as RQ's own workers do; a second signal ends it",
                running.rq_id,
                running.queue,
                extra={"event": "plain_job_runs"},
            )

    def _listen_briefly(self, process: RQProcess) -> None:
        if self._listening.acquire(blocking=False):
            try:
                self._hears(process, 0)
            except EOFError:
                self._gone(process)
            finally:
                self._listening.release()

    def end(self) -> None:
        """Let the RQ process end, which runs nothing any more."""
        process = self._process
        if process is None:
            return
        process.line.hang_up()
        with self._listening:
            for number in (0, signal.SIGTERM, signal.SIGKILL):
                if not process.pid:
                    break
                process.signal(number)
                self._wait_for_the_end(process)
        process.line.close()

    def _wait_for_the_end(self, process: RQProcess) -> None:
        until = monotonic() + _END_SECONDS
        try:
            while (left := until - monotonic()) > 0:
                self._hears(process, left)
        except EOFError:
            self._gone(process)
