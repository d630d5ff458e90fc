"""File in shared memory that holds, for each thread of each process, its job count and first and last time.

A thread takes a slot at its first job and is its only writer from then on, so a tick is two stores without a lock. The
measuring process reads all slots.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

# RQ's own worker forks for each job, and each fork takes a slot.
SLOTS = 65_536
_WORDS = 4
_HEADER_WORDS = 8


class Done(NamedTuple):
    """Total of all processes.

    Attributes:
        jobs: Number of jobs.
        first: When the first of them ended, by time.monotonic(), which all processes share.
        last: When the last of them ended.
    """

    jobs: int
    first: float
    last: float


class JobCounter:
    """The file, mapped into this process.

    Args:
        path: Path of the file, which the measuring process has made by `create`.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        memory = memoryview(mmap.mmap(self._file.fileno(), 0))
        self._counts = memory.cast("q")
        self._times = memory.cast("d")
        self._thread = threading.local()
        os.register_at_fork(after_in_child=self._forget)

    @staticmethod
    def create(path: Path) -> JobCounter:
        """Create the file, or reset it to zero."""
        with path.open("wb") as file:
            file.truncate((_HEADER_WORDS + SLOTS * _WORDS) * 8)
        return JobCounter(path)

    def tick(self) -> None:
        """Count one more job."""
        try:
            slot = self._thread.slot
        except AttributeError:
            slot = self._thread.slot = self._take_slot()
        self._counts[slot] += 1
        self._times[slot + 2] = monotonic()

    def read(self) -> Done:
        """Read the total so far."""
        used = range(_HEADER_WORDS, _HEADER_WORDS + self._counts[0] * _WORDS, _WORDS)
        slots = [slot for slot in used if self._counts[slot]]
        if not slots:
            return Done(0, 0.0, 0.0)
        return Done(
            sum(self._counts[slot] for slot in slots),
            min(self._times[slot + 1] for slot in slots),
            max(self._times[slot + 2] for slot in slots),
        )

    def _take_slot(self) -> int:
        # lockf locks per process, unlike flock, whose lock forks share; `_TAKING` is for the threads.
        with _TAKING:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            number = self._counts[0]
            if number == SLOTS:
                raise RuntimeError("more processes than slots")
            self._counts[0] = number + 1
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        slot = _HEADER_WORDS + number * _WORDS
        self._times[slot + 1] = self._times[slot + 2] = monotonic()
        return slot

    def _forget(self) -> None:
        self._thread = threading.local()


_TAKING = threading.Lock()
