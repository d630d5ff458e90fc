"""The shutdown of one worker process: who requested it, how long running jobs may take, and what comes afterwards.

Any thread and any signal handler may request a shutdown, and may do so again. No method needs a lock: each assigns
attributes, and the threads that wait are notified only afterwards.
"""

from __future__ import annotations

from time import monotonic

from drain.database.wakeup import Wakeup
from drain.workers.handover.journal import Journal


class Shutdown:
    """State of a process' shutdown. Other objects read the attributes and call the methods.

    Args:
        grace_seconds: Grace period: time that running jobs have after the first `stop`.
        journal: Place where the supervisor reads that this process wants no replacement.

    Attributes:
        requested: No further job begins.
        interrupt_at: Time at which running jobs are interrupted, by the monotonic clock.
        is_immediate: Running jobs have no grace period, plain RQ jobs included.
        recycled: The process ends and wants a replacement.
        error: The exception that ended a thread of this process, if any.
    """

    def __init__(self, grace_seconds: float, journal: Journal) -> None:
        self.requested = False
        self.interrupt_at = float("inf")
        self.is_immediate = False
        self.recycled = False
        self.error: BaseException | None = None
        self._grace_seconds = grace_seconds
        self._journal = journal
        self._has_grace_begun = False
        self._wakeups: list[Wakeup] = []

    def new_wakeup(self) -> Wakeup:
        """Make a wakeup for a thread, which is notified of the shutdown too; to be called before threads start."""
        wakeup = Wakeup()
        self._wakeups.append(wakeup)
        return wakeup

    def stop(self) -> None:
        """Let no further job begin; the grace period of running jobs begins with the first call."""
        if not self._has_grace_begun:
            self._has_grace_begun = True
            self.interrupt_at = min(self.interrupt_at, monotonic() + self._grace_seconds)
        self.recycled = False
        self._request()

    def stop_now(self) -> None:
        """Do as `stop`, and end the grace period."""
        self.interrupt_at, self.is_immediate = 0.0, True
        self.stop()

    def resign(self) -> None:
        """Do as `stop`, and ask the supervisor not to start a replacement."""
        self._journal.resigned = True
        self.stop()

    def recycle(self) -> None:
        """Let no further job begin, and ask for a replacement once running jobs have ended, however long they take."""
        self.recycled = not self._has_grace_begun
        self._request()

    def fail(self, error: BaseException) -> None:
        """Stop because a thread cannot go on; the first error is kept."""
        self.error = self.error or error
        self.stop()

    def _request(self) -> None:
        self.requested = True
        for wakeup in self._wakeups:
            wakeup.notify()
