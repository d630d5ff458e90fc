"""Calls of health hooks and commands, in children: the supervisor has no threads."""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from drain.health import HealthChange
from drain.service import callbacks
from drain.service.hysteresis import HealthOptions
from drain.workers.exits import DONE, STOP_SIGNALS, exit_child

log = logging.getLogger(__name__)

# The kernel then ends a hanging child.
_CHILD_SECONDS = int(callbacks.HOOK_SECONDS)


class Callbacks:
    """Calls hooks and commands, one change at a time, each in a child.

    Args:
        in_child: Called first in each child.
    """

    def __init__(self, options: HealthOptions, in_child: Callable[[], None]) -> None:
        self._options = options
        self._in_child = in_child
        self._waiting: deque[HealthChange] = deque(maxlen=callbacks.MOST_WAITING)
        self._pid = 0

    def call(self, change: HealthChange) -> None:
        """Queue a change's hooks."""
        if callbacks.any_for(self._options):
            self._waiting.append(change)

    def run_once(self) -> None:
        """Reap an ended child and start the next; call each turn."""
        if self._pid:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if not pid:
                return
            self._pid = 0
            if os.WIFSIGNALED(status):
                log.error(
                    "health hooks did not end within %d s and were killed",
                    _CHILD_SECONDS,
                    extra={"event": "health_hook_failed"},
                )
        if self._waiting:
            # The next turn retries.
            with suppress(OSError):
                self._fork(self._waiting[0])
                self._waiting.popleft()

    def close(self) -> None:
        """End the child."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _fork(self, change: HealthChange) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._call_in_child(change, mask)
            self._pid = pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _call_in_child(self, change: HealthChange, mask: set[signal.Signals | int]) -> None:
        try:
            signal.set_wakeup_fd(-1)
            # A second stop signal ends it with the supervisor.
            for number in (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            self._in_child()
            # The command is bounded, and killed with all it started.
            callbacks.run_command(change, self._options)
            signal.alarm(_CHILD_SECONDS)
            callbacks.call_hooks(change)
        finally:
            exit_child(DONE)
