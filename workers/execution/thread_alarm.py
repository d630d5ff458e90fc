"""Exceptions that are raised in a job which runs in a thread beside the main thread, where no signal reaches it.

CPython raises an exception that another thread has ordered at the next function call, or the next turn of a loop, of
the interrupted thread. A job that waits in C (for a lock, a socket, `time.sleep`) sees the exception only when that
wait ends.
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
    """Call a function in this thread, which is not the main thread; see `interruptible` for the arguments."""
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
            # An exception that comes so late is dropped: the job has ended.
            try:
                # From here on no other one is ordered; one that was ordered before may still be on its way.
                end()
                if was_interrupted:
                    was_interrupted = False
                    # In its place, and raised here: ordering None makes Python 3.11 hang in functions that are traced.
                    _raise_in(thread, ctypes.py_object(Exception))
                    for _ in range(2):
                        pass
                break
            except Exception:  # noqa: BLE001, S112
                continue


def _kind_of(error: Exception) -> type[Exception]:
    """Return a class that is instantiated without arguments, and makes an exception like this one.

    CPython raises a class in another thread, never an instance.
    """
    kind = type(error)

    def init(self: Exception) -> None:
        Exception.__init__(self, *error.args)

    names = {"__init__": init, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names)
