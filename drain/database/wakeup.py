"""Wakeups of a thread by other threads, signal handlers and interrupted jobs."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Wakeup:
    """Wakeup of one waiting thread.

    `notify` is safe in signal handlers, even if interrupted: it takes no lock that could stay locked.
    """

    def __init__(self) -> None:
        self._notices: SimpleQueue[None] = SimpleQueue()

    def notify(self) -> None:
        """End the current or next `wait`."""
        if self._notices.empty():
            self._notices.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for `notify`; return False on timeout (default: none)."""
        try:
            self._notices.get(timeout=seconds)
        except Empty:
            return False
        return True
