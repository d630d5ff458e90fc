"""The signals that stop a worker process: their handlers, which jobs may replace, and forked children reset."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from drain.workers.exits import STOP_NOW
from drain.workers.process.shutdown import Shutdown

# Called after each job. The function of the module `signal` tries to make an enum of its result, which takes a
# microsecond and fails for a function.
_handler_of: Callable[[int], object] = _signal.getsignal
_SIGTERM = int(signal.SIGTERM)


class StopSignals:
    """The handlers of SIGTERM (stop) and of the supervisor's signal to stop now; for the main thread.

    systemd signals the whole cgroup and the supervisor forwards its own signal, so the handlers are idempotent.

    Args:
        shutdown: The process' shutdown, which the signals request.
    """

    def __init__(self, shutdown: Shutdown) -> None:
        def stop(_signal: int, _frame: FrameType | None) -> None:
            shutdown.stop()

        def stop_now(_signal: int, _frame: FrameType | None) -> None:
            shutdown.stop_now()

        self._stop = stop
        self._handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            _SIGTERM: stop,
            STOP_NOW: stop_now,
        }

    def install(self) -> None:
        """Handle the signals from now on, for the rest of the process' life."""
        self.restore()
        # Children that jobs fork have to end at SIGTERM, however early it comes: Python forgets a signal that comes
        # while it tidies up after the fork, so the signals are blocked until then.
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_reset)
        # A terminal sends SIGINT to all processes; the supervisor passes it on as SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def restore(self) -> None:
        """Put the handlers back where a job has replaced them."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    def restore_if_replaced(self) -> None:
        """Do as `restore` if the handler of SIGTERM has been replaced; takes 0.1 microseconds if not."""
        if _handler_of(_SIGTERM) is not self._stop:
            self.restore()


_blocked = threading.local()


def _block() -> None:
    _blocked.before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, STOP_NOW))


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.before)


def _reset() -> None:
    for number in (signal.SIGTERM, STOP_NOW):
        signal.signal(number, signal.SIG_DFL)
    _unblock()
