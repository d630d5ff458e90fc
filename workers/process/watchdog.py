"""The thread that looks after a worker process: its time of grace, its memory, and whether its supervisor lives.

It asks nothing of a store, so that nothing keeps it waiting.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from pathlib import Path
from time import monotonic

from workers.options import WorkOptions
from workers.process.inbox import Inbox
from workers.process.plain_jobs import PlainJobs

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
# While the process is to stop.
_OFTEN_SECONDS = 0.05
# What goes on though it was interrupted is interrupted again.
_AGAIN_SECONDS = 5.0


class Watchdog:
    """Looks after things about once a second.

    Args:
        hand: What the process has in hand.
        options: What the process may take.
        parent: Id of the process without which this one ends.
        plain: The plain RQ jobs.

    Attributes:
        ended: Nothing is left to look after.
    """

    def __init__(self, inbox: Inbox, options: WorkOptions, parent: int, plain: PlainJobs) -> None:
        self.ended = False
        self._inbox = inbox
        self._options = options
        self._parent = parent
        self._plain = plain
        self._interrupt_at = 0.0

    def run(self) -> None:
        """Go on until `ended` is set."""
        inbox = self._inbox
        while not self.ended:
            if not inbox.stopping:
                self._look_at_the_parent()
                self._look_at_the_memory()
            self._plain.look()
            now = monotonic()
            if now >= max(inbox.stop_at, self._interrupt_at):
                self._interrupt_at = now + _AGAIN_SECONDS
                inbox.interrupt_for_stop()
            inbox.chores.wait(_OFTEN_SECONDS if inbox.stopping else _EVERY_SECONDS)

    def _look_at_the_parent(self) -> None:
        if os.getppid() != self._parent:
            log.warning("the supervisor is gone, ending", extra={"event": "orphaned"})
            self._inbox.stop()

    def _look_at_the_memory(self) -> None:
        most = self._options.max_memory_mb
        if most is None:
            return
        megabytes = max(memory_mb(), memory_mb(self._plain.pid) if self._plain.pid else 0)
        if megabytes > most:
            log.info(
                "%d MB resident, more than --max-memory: a new process takes over",
                *(megabytes,),
                extra={"event": "recycled"},
            )
            self._inbox.recycle()


def memory_mb(pid: int | None = None) -> int:
    """Megabytes of a process, or this one, that are resident; where the system does not tell, the most of this one."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
        return pages * resource.getpagesize() // 2**20
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20
