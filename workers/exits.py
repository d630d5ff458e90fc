"""Ends of processes: exit codes, signals, and how a forked child exits."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

# Exit codes of a worker process: its work is done, it failed, or it wants a replacement.
DONE, FAILED, RECYCLED = 0, 1, 75
# Exit code in place of one, for a process that a signal has killed.
KILLED = -1
# Signals that stop `drain work`: of a service manager, and of a terminal.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Signal from the supervisor: the grace period is over, end at once.
STOP_NOW = signal.SIGUSR2
# Margin after a job's timeout, after which its process is killed: the job has ended neither at its timeout nor at the
# errors that are raised in it every ten seconds.
KILL_AFTER_SECONDS = 25.0


def exit_code(status: int) -> int:
    """Get the exit code of a process from its wait status; `KILLED` if a signal has killed it."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else KILLED


def describe_exit(status: int) -> str:
    """Say in words how a process has ended, by its wait status."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with code {os.WEXITSTATUS(status)}"


def exit_child(code: int, *, runs_exit_functions: bool = False) -> NoReturn:
    """End a forked child at once, without unwinding its parent's frames.

    Args:
        code: Exit code.
        runs_exit_functions: Call the exit functions that job modules have registered.
    """
    with suppress(Exception):
        if runs_exit_functions:
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
