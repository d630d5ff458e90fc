"""One thread that acts when somebody's time is over: a limit costs two writes to a dict, and no thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from time import monotonic

log = logging.getLogger(__name__)

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
        self._has_failed = False

    def look_at(self, time: float) -> None:
        """See to it that the thread wakes by then."""
        if self._thread is None:
            self._start()
        # Not known before the thread runs, which begins with a look at all limits.
        if time < self._wakes_at:
            self._woken.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="time limits", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Without a limit a statement waits for longer, which is better than not to execute it.
                if not self._has_failed:
                    log.warning("no time limit is kept until a thread can be started: %s", error)
                self._has_failed = True
            else:
                self._thread = thread

    def _run(self) -> None:
        while True:
            self._woken.clear()
            now = monotonic()
            # From here on whoever sets an earlier limit wakes us.
            self._wakes_at = now + _IDLE_SECONDS
            for number, (time, act) in list(self.limits.items()):
                # Whoever takes it out first: the block that has ended, or we.
                if time <= now and self.limits.pop(number, None) is not None:
                    _act(act)
                elif time > now:
                    self._wakes_at = min(self._wakes_at, time)
            self._woken.wait(self._wakes_at - monotonic())


def _act(act: Callable[[], object]) -> None:
    try:
        act()
    # Whatever it is: the limits of all others need this thread.
    except Exception:
        log.exception("what was to be done at the end of a time limit has failed")


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
    """Call `act` in another thread once `time` has come, by the monotonic clock.

    Raises nothing, even if no thread can be started: then `act` waits until a later call has started one.

    Args:
        time: When.
        act: Must not wait. What it raises is logged.

    Returns:
        What to call so that it is not called any more, unless it is being called already.
    """
    watch = _watch
    number = next(watch.numbers)
    watch.limits[number] = (time, act)
    watch.look_at(time)
    return partial(watch.limits.pop, number, None)
