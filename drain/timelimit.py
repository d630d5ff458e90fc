"""One thread that acts when somebody's time is over: a limit costs two writes to a dict, and no thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from time import monotonic

# Longest sleep of the thread. Shorter than most limits, so that setting one does not wake it: that would be a switch
# of threads for each job.
_IDLE_SECONDS = 5.0


class _Watch:
    def __init__(self) -> None:
        self.limits: dict[int, tuple[float, Callable[[], object]]] = {}
        self.numbers = count()
        self._wakes_at = 0.0
        self._woken = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def look_at(self, time: float) -> None:
        """See to it that the thread wakes by then."""
        if time < self._wakes_at:
            self._woken.set()
        elif self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._wakes_at = time
                    self._thread = threading.Thread(target=self._run, name="time limits", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while True:
            self._woken.clear()
            now = monotonic()
            # From here on whoever sets an earlier limit wakes us.
            self._wakes_at = now + _IDLE_SECONDS
            for number, (time, act) in list(self.limits.items()):
                # Whoever takes it out first: the block that has ended, or we.
                if time <= now and self.limits.pop(number, None) is not None:
                    act()
                elif time > now:
                    self._wakes_at = min(self._wakes_at, time)
            self._woken.wait(self._wakes_at - monotonic())


_watch = _Watch()


def _begin_anew() -> None:
    global _watch  # noqa: PLW0603
    _watch = _Watch()


# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def limited(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` in another thread if the block takes longer."""
    forget = call_at(monotonic() + seconds, act)
    try:
        yield
    finally:
        forget()


def call_at(time: float, act: Callable[[], object]) -> Callable[[], object]:
    """Call `act` in another thread once `time` has come, by the monotonic clock; it must neither wait nor raise.

    Returns:
        What to call so that it is not called any more, unless it is being called already.
    """
    watch = _watch
    number = next(watch.numbers)
    watch.limits[number] = (time, act)
    watch.look_at(time)
    return partial(watch.limits.pop, number, None)
