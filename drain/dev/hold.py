"""A directory of data belongs to one `drain dev` at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from drain.errors import EmbeddedError

_NAME = "drain-dev.pid"
# Time that the servers of a killed `drain dev` have to end: their guards end them.
_PATIENCE_SECONDS = 15.0


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold a directory for as long as the block runs; it is created if need be.

    Raises:
        EmbeddedError: Another process holds it; the text says which.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # The lock goes with the process, however that ends; the file stays, and says nothing without the lock.
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


def _wait_for_postgres_to_end(lock: Path) -> None:
    deadline = monotonic() + _PATIENCE_SECONDS
    while _names_a_process(lock) and monotonic() < deadline:
        sleep(0.1)


def _names_a_process(lock: Path) -> bool:
    try:
        os.kill(int(lock.read_text().split("\n", 1)[0]), 0)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    except PermissionError:
        # Of another account, as when root runs PostgreSQL as `postgres`.
        pass
    return True
