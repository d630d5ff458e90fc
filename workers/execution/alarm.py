"""SIGALRM, which raises an exception in a job in the main thread."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType

from drain.workers.errors import JobTimeoutError
from drain.workers.lease.interruption import AGAIN_SECONDS
from drain.workers.lease.lease import NEVER

# Takes the interrupter, or None, and the seconds after which another thread uses it.
Act = Callable[[Callable[[], None] | None, float], None]
Alarm = Callable[[Act, float, Callable[[], Exception | None], Callable[[], None]], None]

# signal.getsignal() takes 1 us to wrap handlers in an enum, and fails for functions.
_handler_of: Callable[[int], object] = _signal.getsignal
_SIGALRM = int(signal.SIGALRM)


def interruptible(
    act: Act,
    seconds: float,
    cause: Callable[[], Exception | None] = lambda: None,
    end: Callable[[], None] = lambda: None,
) -> None:
    """Call a function, and raise JobTimeoutError in it after `seconds`.

    An alarm already set, such as RQ's, continues afterwards.

    Args:
        act: Outside the main thread, where nothing can be raised, its first argument is None.
        cause: Returns the exception of an earlier SIGALRM, if any.
        end: Called once a SIGALRM no longer raises, before the previous handler is restored.
    """
    if threading.current_thread() is not threading.main_thread():
        try:
            act(None, NEVER)
        finally:
            end()
        return
    raises = True

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if raises:
            raise cause() or JobTimeoutError(f"it ran for longer than its timeout of {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, interrupt)
    began, outer = monotonic(), 0.0
    try:
        outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        # The alarm rings first, unless the job disables it.
        act(lambda: _ring(interrupt), seconds + AGAIN_SECONDS)
    finally:
        # A signal raises at any call or return, even when a context manager exits, but not in an assignment.
        raises = False
        try:
            end()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if outer:
                signal.setitimer(signal.ITIMER_REAL, max(0.001, outer - (monotonic() - began)))


class StandingAlarm:
    """Alarm of a process whose main thread only runs jobs.

    The handler stays, and the heartbeat's thread sends the signal: two handlers and timers per job would take 8 of the
    15 us that a job which does nothing costs.
    """

    def __init__(self) -> None:
        self._cause: Callable[[], Exception | None] | None = None
        # Once: each look-up makes a new bound method.
        self._handler = self._interrupt
        self._ring_it = self._ring

    def __call__(
        self,
        act: Act,
        seconds: float,
        cause: Callable[[], Exception | None],
        end: Callable[[], None],
    ) -> None:
        """Act as `interruptible`."""
        self._cause = cause
        try:
            act(self._ring_it, seconds)
        finally:
            self._cause = None
            end()
            # An alarm that the job set must not ring in the next one.
            if _handler_of(_SIGALRM) is not self._handler:
                self.install()

    def install(self) -> None:
        """Set the handler; cancel a job's alarm."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._handler)

    def _ring(self) -> None:
        _ring(self._handler)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        error = self._cause and self._cause()
        if error:
            raise error


def _ring(handler: object) -> None:
    # Jobs may use the alarm; by default the signal would end the process.
    if _handler_of(_SIGALRM) is handler:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
