"""Lock of a data directory, for one `drain dev` at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from drain.errors import EmbeddedError

_NAME = "drain-dev.pid"
# For guards to end a killed program's servers.
_LEFT_SERVERS_SECONDS = 15.0


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Create and lock a directory during the block.

    Raises:
        EmbeddedError: Another process, named in the text, has locked it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # The kernel releases the lock when the process ends. The file alone means nothing.
    descriptor = os.open(directory / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise EmbeddedError(
                f"another `drain dev` (pid {pid}) runs in {directory}; stop it, or choose another --directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _wait_for_postgres_to_end(directory / "postgres" / "data" / "postmaster.pid")
        yield
    finally:
        os.close(descriptor)


def _wait_for_postgres_to_end(pid_file: Path) -> None:
    deadline = monotonic() + _LEFT_SERVERS_SECONDS
    while _names_a_process(pid_file) and monotonic() < deadline:
        sleep(0.1)


def _names_a_process(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text().split("\n", 1)[0]), 0)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    except PermissionError:
        # Another account's process: root runs PostgreSQL as `postgres`.
        pass
    return True
