"""Signals of the supervisor and its children."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from drain.workers.exits import DONE, FAILED, STOP_SIGNALS, exit_child

log = logging.getLogger(__name__)


@contextmanager
def handling_signals(handler: Callable[[int, object], None]) -> Iterator[int]:
    """Handle stop signals and SIGCHLD; yield a descriptor readable after each."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    before = {number: signal.signal(number, handler) for number in (*STOP_SIGNALS, signal.SIGCHLD)}
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(-1)
        for number, old in before.items():
            signal.signal(number, old)
        os.close(reading)
        os.close(writing)


def run_child(act: Callable[[], int], mask: set[signal.Signals | int]) -> NoReturn:
    """Call a function in a new child, under this signal mask, and exit with its result."""
    code = FAILED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Nothing is claimed until the process has its own handler.
        signal.signal(signal.SIGTERM, lambda *_: exit_child(DONE))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = act()
    except BaseException:
        log.exception("a worker process failed", extra={"event": "failed"})
    finally:
        exit_child(code, runs_exit_functions=True)
