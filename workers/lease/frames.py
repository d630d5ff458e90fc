"""Frames of running code: file, line and function of each call, and nothing of any value or source text."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any, NamedTuple

# File, line and function of a call.
Frame = tuple[str, int, str]

# Number of outermost and of innermost calls that are kept; those between them of a deep recursion are left out.
_OUTERMOST, _INNERMOST = 50, 100
# Upper bound of the calls that are looked at.
_MOST = 10_000
# Number of characters of a path and of a function's name that are kept.
_LONGEST_TEXT = 500


class Stack(NamedTuple):
    """Stack of a running job.

    Attributes:
        place: Thread in which the job runs.
        frames: Calls of the job, the innermost last; None if the job's own process does not answer.
        beside: Calls of the event loop's thread, if that runs something else while the job waits in it.
    """

    place: str
    frames: list[Frame] | None
    beside: list[Frame]


def stack_in(thread: int, coroutine: Any) -> Stack:
    """Return the stack of a job that runs in this thread; of an `async def` that waits, the calls that it awaits.

    Args:
        thread: Identifier of the thread.
        coroutine: Coroutine of the job; None if it has none.
    """
    place, calls = _place_of(thread), frames_of_thread(thread)
    if coroutine is None or coroutine.cr_running or not (waits := frames_of_coroutine(coroutine)):
        return Stack(place, calls, [])
    is_idle = bool(calls) and calls[-1][2].endswith(".select")
    return Stack(place, waits, [] if is_idle else calls)


def _place_of(thread: int) -> str:
    if thread == threading.main_thread().ident:
        return "main thread"
    # A job may give its thread any name.
    name = next((each.name for each in threading.enumerate() if each.ident == thread), "")
    return name if name == "event loop" else f"thread {name[:_LONGEST_TEXT]!r}"


def frames_of_thread(thread: int) -> list[Frame]:
    """List the calls of a thread, the innermost last; empty if there is no such thread.

    The thread goes on meanwhile: calls may return while they are read.
    """
    found: list[Frame] = []
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None and len(found) < _MOST:
        found.append(_described(frame))
        frame = frame.f_back
    return shortened(found[::-1])


def frames_of_coroutine(coroutine: Any) -> list[Frame]:
    """List the calls of a coroutine that waits, the innermost last: those that await each other."""
    found: list[Frame] = []
    while coroutine is not None and len(found) < _MOST:
        # Coroutines, generators and async generators spell the same attributes with letters of their own.
        for letters in ("cr", "gi", "ag"):
            if (frame := getattr(coroutine, f"{letters}_frame", None)) is not None:
                found.append(_described(frame))
                inner = "yieldfrom" if letters == "gi" else "await"
                coroutine = getattr(coroutine, f"{letters}_{inner}", None)
                break
        else:
            break
    return shortened(found)


def shortened(frames: list[Frame]) -> list[Frame]:
    """Leave out the calls in the middle of a deep stack, but for a line that says how many there were."""
    left_out = len(frames) - _OUTERMOST - _INNERMOST
    if left_out <= 0:
        return frames
    return [*frames[:_OUTERMOST], ("", 0, f"({left_out} more calls)"), *frames[-_INNERMOST:]]


def _described(frame: FrameType) -> Frame:
    code = frame.f_code
    # None while a call is being entered.
    line: int | None = frame.f_lineno
    return code.co_filename[:_LONGEST_TEXT], line or code.co_firstlineno, code.co_qualname[:_LONGEST_TEXT]
