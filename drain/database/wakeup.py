"""The wakeup of one thread: other threads, signal handlers and interrupted jobs may end its wait."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Wakeup:
    """Wakes one waiting thread.

    `notify` needs no lock: a signal handler may call it, and an exception that a signal raises inside of it does no
    harm. The lock of a threading.Event could stay locked.
    """

    def __init__(self) -> None:
        self._notices: SimpleQueue[None] = SimpleQueue()

    def notify(self) -> None:
        """Let `wait` return, now or at its next call."""
        if self._notices.empty():
            self._notices.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for `notify`; return False if the timeout (default: none) passes first."""
        try:
            self._notices.get(timeout=seconds)
        except Empty:
            return False
        return True
