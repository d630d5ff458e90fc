"""Exceptions raised in a job outside the main thread, which signals do not reach.

CPython raises it at the thread's next call or loop iteration, after any wait in C (a lock, a socket, `time.sleep`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from drain.workers.execution.alarm import Act

_raise_in: Callable[[ctypes.c_ulong, object], int] = ctypes.pythonapi.PyThreadState_SetAsyncExc


def thread_alarm(
    act: Act, seconds: float, cause: Callable[[], Exception | None], end: Callable[[], None]
) -> None:
    """Call a function in this thread, as `interruptible` does."""
    thread = ctypes.c_ulong(threading.get_ident())
    was_interrupted = False

    def interrupt() -> None:
        nonlocal was_interrupted
        error = cause()
        if error is not None:
            was_interrupted = True
            _raise_in(thread, ctypes.py_object(_kind_of(error)))

    try:
        act(interrupt, seconds)
    finally:
        while True:
            # The job has ended.
            try:
                # No more are ordered from here on; an earlier one may still come.
                end()
                if was_interrupted:
                    was_interrupted = False
                    # Replaces it, raised here: ordering None makes Python 3.11 hang in traced functions.
                    _raise_in(thread, ctypes.py_object(Exception))
                    for _ in range(2):
                        pass
                break
            except Exception:  # noqa: BLE001, S112
                continue


def _kind_of(error: Exception) -> type[Exception]:
    """Return a class with this exception's arguments, as CPython raises only classes there."""
    kind = type(error)

    def init(self: Exception) -> None:
        Exception.__init__(self, *error.args)

    names = {"__init__": init, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names)
