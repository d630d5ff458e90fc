"""Time limits for blocks, kept by one thread; each costs two dict writes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from time import monotonic

from drain.database.wakeup import Wakeup

log = logging.getLogger(__name__)

# Shorter than most limits, so that setting one rarely wakes the thread.
_IDLE_SECONDS = 5.0


class _Watch:
    def __init__(self) -> None:
        self.limits: dict[int, tuple[float, Callable[[], object]]] = {}
        self.numbers = count()
        self._wakes_at = 0.0
        self._wakeup = Wakeup()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def wake_by(self, time: float) -> None:
        if self._thread is None:
            self._start()
        # The thread sets `_wakes_at` before it checks all limits.
        if time < self._wakes_at:
            self._wakeup.notify()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="time limits", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Better no time limit than no statement.
                if not self._has_failed:
                    log.warning(
                        "time limits are not enforced until a thread can be started: %s",
                        error,
                        extra={"event": "no_thread"},
                    )
                self._has_failed = True
            else:
                self._thread = thread

    def _run(self) -> None:
        while True:
            now = monotonic()
            # From here on, an earlier limit wakes this thread.
            self._wakes_at = now + _IDLE_SECONDS
            for number, (time, act) in list(self.limits.items()):
                # Popped once: by the block if it ended in time, or else here.
                if time <= now and self.limits.pop(number, None) is not None:
                    _act(act)
                elif time > now:
                    self._wakes_at = min(self._wakes_at, time)
            self._wakeup.wait(max(0.0, self._wakes_at - monotonic()))


def _act(act: Callable[[], object]) -> None:
    try:
        act()
    # All other limits need this thread.
    except Exception:
        log.exception("the action at the end of a time limit failed", extra={"event": "time_limit_failed"})


_watch = _Watch()


def _start_over() -> None:
    global _watch  # noqa: PLW0603
    _watch = _Watch()


# Threads do not survive a fork.
os.register_at_fork(after_in_child=_start_over)


@contextmanager
def limited(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` in another thread if the block takes longer."""
    forget = call_at(monotonic() + seconds, act)
    try:
        yield
    finally:
        forget()


def call_at(time: float, act: Callable[[], object]) -> Callable[[], object]:
    """Call `act`, which must not block, in another thread at this monotonic time.

    Never raises: if no thread can start, `act` waits for a later call.

    Returns:
        Function that cancels the call unless it has begun.
    """
    watch = _watch
    number = next(watch.numbers)
    watch.limits[number] = (time, act)
    watch.wake_by(time)
    return partial(watch.limits.pop, number, None)
