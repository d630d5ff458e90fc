"""SIGALRM, by which an exception is raised in a job that runs in the main thread.

`interruptible` sets an alarm for one call, and puts back what was set before: RQ's own worker has an alarm too.
`StandingAlarm` is for a process whose main thread does nothing but run jobs: the heartbeat's thread rings it.
"""

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

# Function that is called within a time. Its arguments are those of `Interruption.start`: what interrupts it, which is
# None where nothing can, and after how many seconds another thread is to do that.
Act = Callable[[Callable[[], None] | None, float], None]
# Calls a function within a time: the function, its time in seconds, why it may be interrupted earlier, and what is
# called at its end.
Alarm = Callable[[Act, float, Callable[[], Exception | None], Callable[[], None]], None]

# signal.getsignal() tries to make an enum of the handler, which fails for a function and takes a microsecond.
_handler_of: Callable[[int], object] = _signal.getsignal
_SIGALRM = int(signal.SIGALRM)


def interruptible(
    act: Act,
    seconds: float,
    cause: Callable[[], Exception | None] = lambda: None,
    end: Callable[[], None] = lambda: None,
) -> None:
    """Call a function, and raise JobTimeoutError inside of it once `seconds` have passed.

    Works in the main thread, where RQ runs jobs. An alarm that is set already goes on afterwards.

    Args:
        act: The function; in another thread, where nothing can be raised, its first argument is None.
        seconds: Time limit, from now.
        cause: Returns what a SIGALRM that comes earlier is to raise, if anything.
        end: Called at the end: when a SIGALRM raises nothing any more, and before a later SIGALRM goes to the handler
            that was set before.
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
        # The first time is the alarm's, unless the job switches that off.
        act(lambda: _ring(interrupt), seconds + AGAIN_SECONDS)
    finally:
        # A signal raises where a call begins or returns, even in the first line of a context manager's end.
        # An assignment it does not interrupt.
        raises = False
        try:
            end()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if outer:
                signal.setitimer(signal.ITIMER_REAL, max(0.001, outer - (monotonic() - began)))


class StandingAlarm:
    """Alarm of a process whose main thread does nothing but run jobs; called as `interruptible`.

    The handler stays where it is, and no timer is set: the heartbeat's thread sends the signal when the time is over.
    Measured: 8 of the 15 microseconds that a job which does nothing cost the worker went into two handlers and two
    timers for each.
    """

    def __init__(self) -> None:
        self._cause: Callable[[], Exception | None] | None = None
        # Bound once: a bound method is another object each time that it is looked up.
        self._handler = self._interrupt
        self._ring_it = self._ring

    def __call__(
        self,
        act: Act,
        seconds: float,
        cause: Callable[[], Exception | None],
        end: Callable[[], None],
    ) -> None:
        """Call `act`; see `interruptible`."""
        self._cause = cause
        try:
            act(self._ring_it, seconds)
        finally:
            # As in `interruptible`: an assignment is not interrupted.
            self._cause = None
            end()
            # The job may have used the alarm for itself: what it has set must not ring in the next job's time.
            if _handler_of(_SIGALRM) is not self._handler:
                self.install()

    def install(self) -> None:
        """Set the handler, and cancel an alarm that a job has left behind."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._handler)

    def _ring(self) -> None:
        _ring(self._handler)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        error = self._cause and self._cause()
        if error:
            raise error


def _ring(handler: object) -> None:
    """Send SIGALRM to the main thread, if this is its handler."""
    # A job may use the alarm for itself; by default the signal would end the process.
    if _handler_of(_SIGALRM) is handler:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
