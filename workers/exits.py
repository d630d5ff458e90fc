"""Ends of processes: exit codes, signals, and their words."""

from __future__ import annotations

import os
import signal

# Exit codes of a worker process: its work is done, it failed, or it is to be replaced by a new one.
DONE, FAILED, RECYCLED = 0, 1, 75
# Signal from the supervisor: the grace period is over, end at once.
STOP_NOW = signal.SIGUSR2
# Margin after a job's timeout: a job that yields neither to it nor to what is raised every ten seconds is killed then.
KILL_AFTER_SECONDS = 25.0


def ended(status: int) -> str:
    """Say in words how a process has ended, by its wait status."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with code {os.WEXITSTATUS(status)}"
