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

from drain.config import Settings
from drain.errors import UnavailableError
from workers.inheritance import settle
from workers.isolation import ended
from workers.journal import Journal
from workers.options import WorkOptions
from workers.process import DONE, RECYCLED, STOP_NOW, Process

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
class Seat:
    """The place of one worker process.

    Attributes:
        number: From 1, for people.
        journal: Of whoever sits here.
        pid: Of whoever sits here; 0 for nobody.
        began_at: When that one was started.
        start_at: When the next one may be.
        death: How the last one ended.
        pause_seconds: Between the last two.
        settled: What the last one left behind has been seen to.
    """

    number: int
    journal: Journal = field(default_factory=Journal)
    pid: int = 0
    began_at: float = 0.0
    start_at: float = 0.0
    death: str = "died"
    pause_seconds: float = 0.0
    settled: bool = False


class Supervisor:
    """Keeps worker processes running until it is told to stop, or all have ended in a burst.

    Args:
        settings: Where they work.
        options: How.
    """

    def __init__(self, settings: Settings, options: WorkOptions) -> None:
        self._settings = settings
        self._options = options
        self._seats = [Seat(number + 1) for number in range(options.processes)]
        self._empty: set[Seat] = set()
        self._told = self._told_of = 0
        self._kill_at = float("inf")
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
                self._start_those_missing()
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
        running = any(seat.pid for seat in self._seats)
        return not running and (bool(self._told) or len(self._empty) == len(self._seats))

    def _take_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGCHLD:
            return
        self._told += 1
        grace = self._options.grace_seconds if self._told == 1 else 0.0
        self._kill_at = monotonic() + grace + _KILL_SECONDS
        for seat in self._seats:
            if seat.pid:
                with suppress(ProcessLookupError):
                    os.kill(seat.pid, signal.SIGTERM if self._told == 1 else STOP_NOW)

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
        waiting = [seat.start_at - now for seat in self._seats if not seat.pid and seat not in self._empty]
        return max(0.0, min([_LOOK_SECONDS, *waiting]))

    def _start_those_missing(self) -> None:
        now = monotonic()
        for seat in self._seats:
            if not seat.pid and seat not in self._empty and not self._told and now >= seat.start_at:
                self._fork(seat, lambda seat=seat: self._work(seat))  # type: ignore[misc]
                log.info(
                    "worker process %d (pid %d) works on %s",
                    *(seat.number, seat.pid, ", ".join(self._options.queues)),
                    extra={"event": "started"},
                )

    def _work(self, seat: Seat) -> int:
        return Process(self._settings, self._options, seat.journal, seat.death, self._pid).run()

    def _fork(self, seat: Seat, act: Callable[[], int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that comes in between must reach the child as well.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            pid = os.fork()
            if pid == 0:
                _be_the_child(act, blocked)
            seat.pid, seat.began_at = pid, monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _bury(self) -> None:
        for seat in self._seats:
            if not seat.pid:
                continue
            found, status = os.waitpid(seat.pid, os.WNOHANG)
            if found:
                pid, seat.pid = seat.pid, 0
                self._ended(seat, pid, status)

    def _ended(self, seat: Seat, pid: int, status: int) -> None:
        seat.death = ended(status)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        if code == DONE:
            self._empty.add(seat)
            log.info("worker process %d (pid %d) has ended", *(seat.number, pid), extra={"event": "ended"})
            return
        if code == RECYCLED and not self._told:
            log.info(
                "worker process %d (pid %d) is replaced", *(seat.number, pid), extra={"event": "replaced"}
            )
            return
        log.error(
            "worker process %d (pid %d) %s", *(seat.number, pid, seat.death), extra={"event": "worker_died"}
        )
        if code >= 0:
            self._failed = True
        if code >= 0 and self._options.burst:
            self._empty.add(seat)
        lived = monotonic() - seat.began_at
        seat.pause_seconds = (
            0.0
            if lived > _WELL_SECONDS
            else min(_LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * seat.pause_seconds))
        )
        seat.start_at = monotonic() + seat.pause_seconds
        if (self._told or seat in self._empty) and seat.journal.entries() and not seat.settled:
            # Nobody comes after it.
            seat.settled = True
            self._kill_at = monotonic() + _SETTLE_SECONDS
            self._fork(seat, lambda: self._settle(seat))

    def _settle(self, seat: Seat) -> int:
        settle(seat.journal, self._settings, seat.death)
        return DONE

    def _kill_those_overdue(self) -> None:
        now = monotonic()
        for seat in self._seats:
            if seat.pid and (now > self._kill_at or seat.journal.is_overdue()):
                log.error(
                    "worker process %d (pid %d) is killed: it does not yield",
                    *(seat.number, seat.pid),
                    extra={"event": "killed"},
                )
                with suppress(ProcessLookupError):
                    os.kill(seat.pid, signal.SIGKILL)


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
