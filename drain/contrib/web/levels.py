"""Waiting and running jobs, sampled each minute, since the database keeps no history of them.

A thread samples until twelve hours after the last visit of the overview. A visit itself is a sample, without a query.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from drain.errors import DrainError
from drain.read.queue_overview import Number

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
SAMPLES = 720


class Level(NamedTuple):
    """Jobs of all queues at one instant."""

    waiting: Number
    running: Number


class Levels:
    """Samples of the last hours, and their thread; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[tuple[int, Level]] = deque(maxlen=SAMPLES)
        self._visited_at = 0.0
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_closed = False

    def visit(self, level: Level, read: Callable[[], Level]) -> None:
        """Note a visit with its numbers; `read` samples until the next one."""
        with self._lock:
            self._visited_at = monotonic()
            self._note(level)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._run, args=(read,), name="drain web levels", daemon=True
                )
                self._thread.start()

    def curve(self) -> list[Level | None]:
        """Return the samples by step, earliest first; None where missing."""
        with self._lock:
            known = dict(self._samples)
        latest = _step()
        earliest = min((step for step in known if step > latest - SAMPLES), default=latest + 1)
        return [known.get(step) for step in range(earliest, latest + 1)]

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._is_closed = True
        self._wake.set()

    def _run(self, read: Callable[[], Level]) -> None:
        while self._goes_on():
            self._sample(read)
            self._wake.wait(EVERY_SECONDS - monotonic() % EVERY_SECONDS)

    def _goes_on(self) -> bool:
        with self._lock:
            if self._is_closed or monotonic() - self._visited_at > SAMPLES * EVERY_SECONDS:
                self._thread = None
                return False
            return True

    def _sample(self, read: Callable[[], Level]) -> None:
        with self._lock:
            if self._samples and self._samples[-1][0] >= _step():
                return
        try:
            level = read()
        except DrainError:
            # A gap: the page itself reports the reason.
            return
        except Exception:
            log.exception("a sample failed", extra={"event": "web_failed"})
            return
        with self._lock:
            self._note(level)

    def _note(self, level: Level) -> None:
        step = _step()
        if not self._samples or self._samples[-1][0] < step:
            self._samples.append((step, level))


def _step() -> int:
    return int(monotonic() // EVERY_SECONDS)
