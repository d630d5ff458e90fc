"""Wakeups of a waiting thread."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Wakeup:
    """Wakeup of one thread, by other threads, signal handlers and interrupted jobs.

    `notify` takes no lock, which could stay locked if interrupted.
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
