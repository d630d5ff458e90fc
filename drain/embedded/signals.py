"""Signals to a process and its children."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """List a process's children."""
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    if listing.exists():
        return [int(child) for child in listing.read_text().split()]
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, check=False)
    return [int(child) for child in found.stdout.split()]


def pause(pid: int) -> None:
    """SIGSTOP a process and its children, which keep locks and connections."""
    # Parent first, so that it starts no other child.
    send([pid], signal.SIGSTOP)
    send(children(pid), signal.SIGSTOP)


def resume(pid: int) -> None:
    """SIGCONT a process and its children."""
    send([*children(pid), pid], signal.SIGCONT)


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to existing processes."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
