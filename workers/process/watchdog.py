"""Watchdog of memory, supervisor, plain jobs and grace period, which no store can delay."""

from __future__ import annotations

import logging
import os
import resource
import sys
from pathlib import Path
from time import monotonic

from drain.workers.options import WorkOptions
from drain.workers.process.inbox import Inbox
from drain.workers.process.plain_jobs import PlainJobs
from drain.workers.process.shutdown import Shutdown

log = logging.getLogger(__name__)

# Normally, and during shutdown.
_EVERY_SECONDS = 1.0
_OFTEN_SECONDS = 0.05
# Between interruptions of a surviving job.
_AGAIN_SECONDS = 5.0


class Watchdog:
    """Checks the process about once a second until `stop`."""

    def __init__(
        self, inbox: Inbox, shutdown: Shutdown, options: WorkOptions, parent: int, plain: PlainJobs
    ) -> None:
        self._inbox = inbox
        self._shutdown = shutdown
        self._options = options
        self._parent = parent
        self._plain = plain
        self._wakeup = shutdown.new_wakeup()
        self._has_ended = False
        self._interrupt_at = 0.0

    def run(self) -> None:
        """Check until stopped."""
        shutdown = self._shutdown
        while not self._has_ended:
            if not shutdown.requested:
                self._check_supervisor()
                self._check_memory()
            self._plain.check()
            now = monotonic()
            if now >= max(shutdown.interrupt_at, self._interrupt_at):
                self._interrupt_at = now + _AGAIN_SECONDS
                self._inbox.running.interrupt_for_stop()
            self._wakeup.wait(_OFTEN_SECONDS if shutdown.requested else _EVERY_SECONDS)

    def stop(self) -> None:
        """Let `run` return."""
        self._has_ended = True
        self._wakeup.notify()

    def _check_supervisor(self) -> None:
        if os.getppid() != self._parent:
            log.warning("the supervisor is gone; exiting", extra={"event": "orphaned"})
            self._shutdown.stop()

    def _check_memory(self) -> None:
        limit = self._options.max_memory_mb
        if limit is None:
            return
        megabytes = max(memory_mb(), memory_mb(self._plain.pid) if self._plain.pid else 0)
        if megabytes > limit:
            log.info(
                "%d MB resident, more than --max-memory: a new process takes over",
                megabytes,
                extra={"event": "recycled"},
            )
            self._shutdown.recycle()


def memory_mb(pid: int | None = None) -> int:
    """Read a process' resident memory in MB; without /proc, this one's peak."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
        return pages * resource.getpagesize() // 2**20
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20
