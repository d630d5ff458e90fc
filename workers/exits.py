"""Exit codes, signals, and exits of forked children."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

# Exit codes of a worker process; the last wants a replacement.
DONE, FAILED, RECYCLED = 0, 1, 75
# After a signal.
KILLED = -1
# From a service manager or a terminal.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# From the supervisor after the grace period.
STOP_NOW = signal.SIGUSR2
# From a job's timeout, if repeated errors have not ended it.
KILL_AFTER_SECONDS = 25.0


def exit_code(status: int) -> int:
    """Return a wait status' exit code; `KILLED` after a signal."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else KILLED


def describe_exit(status: int) -> str:
    """Describe a wait status."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with code {os.WEXITSTATUS(status)}"


def exit_child(code: int, *, runs_exit_functions: bool = False) -> NoReturn:
    """End a forked child at once, without unwinding its parent's frames.

    Args:
        runs_exit_functions: Those of job modules.
    """
    with suppress(Exception):
        if runs_exit_functions:
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
