"""Handlers of stop signals."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from drain.workers.exits import STOP_NOW
from drain.workers.process.shutdown import Shutdown

# Called after each job; see `execution.alarm`.
_handler_of: Callable[[int], object] = _signal.getsignal
_SIGTERM = int(signal.SIGTERM)


class StopSignals:
    """Handlers of SIGTERM and the supervisor's signal to stop now; for the main thread.

    Idempotent: systemd signals the whole cgroup, and the supervisor forwards its signal.
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
        """Install the handlers."""
        self.restore()
        # Children forked by jobs must end at SIGTERM. Python drops signals while cleaning up after a fork: block them.
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_reset)
        # A terminal sends SIGINT to all; the supervisor passes SIGTERM on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def restore(self) -> None:
        """Restore handlers that a job replaced."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    def restore_if_replaced(self) -> None:
        """Restore a replaced SIGTERM handler; otherwise 0.1 us."""
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
