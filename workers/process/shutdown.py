"""Shutdown of one worker process.

Any thread or signal handler may request it, repeatedly. No locks: methods assign attributes, then notify threads.
"""

from __future__ import annotations

from time import monotonic

from drain.database.wakeup import Wakeup
from drain.workers.handover.journal import Journal


class Shutdown:
    """State of a process' shutdown.

    Args:
        grace_seconds: From the first `stop`.

    Attributes:
        requested: No more jobs begin.
        interrupt_at: When running jobs are interrupted, by `monotonic()`.
        is_immediate: No grace period, plain RQ jobs included.
        recycled: The process wants a replacement.
        error: Of the first failed thread.
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
        """Create a wakeup that shutdown notifies; before threads start."""
        wakeup = Wakeup()
        self._wakeups.append(wakeup)
        return wakeup

    def stop(self) -> None:
        """Begin no more jobs; the first call starts the grace period."""
        if not self._has_grace_begun:
            self._has_grace_begun = True
            self.interrupt_at = min(self.interrupt_at, monotonic() + self._grace_seconds)
        self.recycled = False
        self._request()

    def stop_now(self) -> None:
        """Stop, and end the grace period."""
        self.interrupt_at, self.is_immediate = 0.0, True
        self.stop()

    def resign(self) -> None:
        """Stop, without a replacement."""
        self._journal.resigned = True
        self.stop()

    def recycle(self) -> None:
        """Begin no more jobs; ask for a replacement once running ones have ended."""
        self.recycled = not self._has_grace_begun
        self._request()

    def fail(self, error: BaseException) -> None:
        """Stop because a thread failed; keep the first error."""
        self.error = self.error or error
        self.stop()

    def _request(self) -> None:
        self.requested = True
        for wakeup in self._wakeups:
            wakeup.notify()
