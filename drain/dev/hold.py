"""A directory of data belongs to one `drain dev` at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drain.errors import EmbeddedError

_NAME = "drain-dev.pid"


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
        yield
    finally:
        os.close(descriptor)
