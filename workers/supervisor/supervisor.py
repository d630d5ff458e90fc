"""The process that `drain work` starts: it keeps as many worker processes running as it was told, and runs no job.

It forks them after the job modules have been imported, so that they share that memory, and holds no connection. Each
sits on a seat with a journal; whoever takes the seat of one that died settles what that one left behind.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from uuid import uuid4

from drain.config import Settings
from drain.errors import UnavailableError
from workers.exits import DONE, FAILED, RECYCLED, STOP_NOW, ended
from workers.handover.journal import Journal
from workers.handover.recovery import settle
from workers.options import WorkOptions
from workers.process.process import Process
from workers.supervisor.health import Health

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
# A process that has lived for so long has begun well.
_WELL_SECONDS = 30.0
# What was interrupted when the time of grace was over has so long to end; four times as long as any one thing that
# is asked of a store that stands still.
_KILL_SECONDS = 20.0
_SETTLE_SECONDS = 10


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """The place of one worker process.

    Attributes:
        number: From 1, for people.
        name: Of RQ's worker, for RQ's tools.
        journal: Of whoever sits here.
        pid: Of whoever sits here; 0 for nobody.
        began_at: When that one was started.
        start_at: When the next one may be.
        death: How the last one ended.
        pause_seconds: Between the last two.
        settled: What the last one left behind has been seen to.
        kill_at: When whoever sits here has had the time to end.
        stopped: The last one was killed because it went on when it had been told to stop.
    """

    number: int
    name: str
    journal: Journal = field(default_factory=Journal)
    pid: int = 0
    began_at: float = 0.0
    start_at: float = 0.0
    death: str = "died"
    pause_seconds: float = 0.0
    settled: bool = False
    kill_at: float = float("inf")
    stopped: bool = False

    @property
    def is_unsettled(self) -> bool:
        """Whether nobody sits here, and what the last one held is left behind."""
        return not self.pid and not self.settled and bool(self.journal.entries())


class Supervisor:
    """Keeps worker processes running until it is told to stop, or all have ended in a burst.

    Args:
        settings: Where they work.
        options: How.

    Attributes:
        health: Is told each time that the loop turns.
    """

    def __init__(self, settings: Settings, options: WorkOptions) -> None:
        self._settings = settings
        self._options = options
        self._slots = [
            WorkerSlot(number + 1, _name(options, number + 1)) for number in range(options.processes)
        ]
        self.health = Health([slot.journal for slot in self._slots])
        self._empty: set[WorkerSlot] = set()
        self._told = self._told_of = 0
        self._failed = False
        self._pid = os.getpid()

    def run(self) -> None:
        """Return when no process is left.

        Raises:
            UnavailableError: A process gave up in a burst; its log says why.
        """
        # What has been imported is shared for as long as nobody touches it.
        gc.collect()
        gc.freeze()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        handlers = {
            number: signal.signal(number, self._take_signal)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        }
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            while not self._is_over():
                self._settle_what_nobody_else_will()
                self._start_those_missing()
                self.health.turn(stopping=bool(self._told))
                select.select([reading], [], [], self._pause())
                with suppress(BlockingIOError):
                    os.read(reading, 4096)
                self._tell_of_signals()
                self._bury()
                self._kill_those_overdue()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(reading)
            os.close(writing)
        if self._failed and self._options.burst:
            raise UnavailableError("a worker process gave up; see the line above")

    def _is_over(self) -> bool:
        running = any(slot.pid for slot in self._slots)
        nobody_comes = bool(self._told) or len(self._empty) == len(self._slots)
        return not running and nobody_comes and not any(slot.is_unsettled for slot in self._slots)

    def _take_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGCHLD:
            return
        self._told += 1
        for slot in self._slots:
            self._tell(slot)

    def _tell(self, slot: WorkerSlot) -> None:
        if slot.pid and not slot.settled:
            grace = self._options.grace_seconds if self._told == 1 else 0.0
            slot.kill_at = monotonic() + grace + _KILL_SECONDS
            with suppress(ProcessLookupError):
                os.kill(slot.pid, signal.SIGTERM if self._told == 1 else STOP_NOW)

    def _tell_of_signals(self) -> None:
        # Not in the handler: it may have come in the middle of a line.
        if self._told_of < self._told:
            self._told_of = self._told
            log.info(
                "told to stop: what runs has %g s to end; a second signal ends it now"
                if self._told == 1
                else "told to stop now (after %g s at the latest)",
                *(self._options.grace_seconds if self._told == 1 else _KILL_SECONDS,),
                extra={"event": "stopping"},
            )

    def _pause(self) -> float:
        now = monotonic()
        waiting = [slot.start_at - now for slot in self._slots if not slot.pid and slot not in self._empty]
        return max(0.0, min([_LOOK_SECONDS, *waiting]))

    def _start_those_missing(self) -> None:
        now = monotonic()
        for slot in self._slots:
            if not slot.pid and slot not in self._empty and not self._told and now >= slot.start_at:
                slot.kill_at = float("inf")
                if not self._fork(slot, lambda slot=slot: self._work(slot)):  # type: ignore[misc]
                    continue
                log.info(
                    "worker process %d (pid %d) works on %s",
                    *(slot.number, slot.pid, ", ".join(self._options.queues)),
                    extra={"event": "started"},
                )

    def _work(self, slot: WorkerSlot) -> int:
        self.health.leave()
        return Process(self._settings, self._options, slot.journal, slot.death, self._pid, slot.name).run()

    def _settle_what_nobody_else_will(self) -> None:
        for slot in self._slots:
            if (self._told or slot in self._empty) and slot.is_unsettled:
                slot.settled = True
                slot.kill_at = monotonic() + _SETTLE_SECONDS
                self._fork(slot, lambda slot=slot: self._settle(slot), always=True)  # type: ignore[misc]

    def _fork(self, slot: WorkerSlot, act: Callable[[], int], *, always: bool = False) -> bool:
        """Let a child act on a seat; not if a signal has come in between, or the system has no process to give."""
        # What cannot be written, on a full disk, is no reason not to work.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        told = self._told
        # A signal that comes from here on finds the child.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            if self._told and not always:
                return False
            try:
                pid = os.fork()
            except OSError as error:
                log.error(
                    "no process for worker process %d: %s", slot.number, error, extra={"event": "no_process"}
                )
                slot.start_at = monotonic() + _LONGEST_PAUSE_SECONDS
                return False
            if pid == 0:
                _be_the_child(act, blocked)
            slot.pid, slot.began_at = pid, monotonic()
            # But for one that another thread has taken, whose mask is its own: its handler may have run when nobody
            # sat here yet. To be told twice is to be told once.
            if self._told > told:
                self._tell(slot)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return True

    def _bury(self) -> None:
        for slot in self._slots:
            if not slot.pid:
                continue
            found, status = os.waitpid(slot.pid, os.WNOHANG)
            if found:
                pid, slot.pid = slot.pid, 0
                self._ended(slot, pid, status)

    def _ended(self, slot: WorkerSlot, pid: int, status: int) -> None:
        if slot.settled:
            # It has seen to what was left, and does not leave anything itself.
            return
        slot.death = ended(status)
        slot.journal.bequeath()
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        if code == DONE and (slot.journal.resigned or self._told):
            self._empty.add(slot)
            log.info("worker process %d (pid %d) has ended", *(slot.number, pid), extra={"event": "ended"})
        elif code in (DONE, RECYCLED) and not slot.journal.entries() and not self._told:
            log.info(
                "worker process %d (pid %d) is replaced", *(slot.number, pid), extra={"event": "replaced"}
            )
        else:
            log.error(
                "worker process %d (pid %d) %s",
                *(slot.number, pid, slot.death),
                extra={"event": "worker_died"},
            )
            self._pause_after_death(slot, code)

    def _pause_after_death(self, slot: WorkerSlot, code: int) -> None:
        if code == FAILED and slot.journal.resigned:
            self._failed = True
            if self._options.burst:
                self._empty.add(slot)
        if monotonic() - slot.began_at > _WELL_SECONDS:
            slot.pause_seconds = 0.0
        else:
            slot.pause_seconds = min(
                _LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * slot.pause_seconds)
            )
        slot.start_at = monotonic() + slot.pause_seconds

    def _settle(self, slot: WorkerSlot) -> int:
        self.health.leave()
        settle(slot.journal, self._settings, slot.death, stopped=slot.stopped)
        return DONE

    def _kill_those_overdue(self) -> None:
        now = monotonic()
        for slot in self._slots:
            if self._told == 1 and slot.journal.is_patient:
                # As long as after any other stop, from the next look on at which the job has ended.
                slot.kill_at = max(slot.kill_at, now + _LOOK_SECONDS + _KILL_SECONDS)
            is_overdue = slot.pid and slot.journal.is_overdue()
            if slot.pid and (now > slot.kill_at or is_overdue):
                # A job that is long past its own timeout is why, stop or no stop.
                slot.stopped = not is_overdue
                log.error(
                    "worker process %d (pid %d) is killed: it does not yield",
                    *(slot.number, slot.pid),
                    extra={"event": "killed"},
                )
                with suppress(ProcessLookupError):
                    os.kill(slot.pid, signal.SIGKILL)


def _name(options: WorkOptions, number: int) -> str:
    name = options.plain.name or uuid4().hex
    return name if options.processes == 1 or options.plain.name is None else f"{name}.{number}"


def _be_the_child(act: Callable[[], int], mask: set[signal.Signals | int]) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = act()
    except BaseException:
        log.exception("a worker process cannot go on", extra={"event": "failed"})
    finally:
        with suppress(Exception):
            # What the job modules have registered is to be called; the parent's frames are not to be unwound.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
