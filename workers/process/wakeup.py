"""The wakeup of one thread: other threads and signal handlers may end its wait."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Wakeup:
    """Wakes one waiting thread; needs no lock, so a signal handler may call `notify`."""

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
