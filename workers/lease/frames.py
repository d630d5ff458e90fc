"""Frames of running code: file, line and function; never values or source."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any, NamedTuple

Frame = tuple[str, int, str]

# Kept of a deep stack.
_OUTERMOST, _INNERMOST = 50, 100
_MOST = 10_000
_LONGEST_TEXT = 500


class Stack(NamedTuple):
    """Stack of a running job.

    Attributes:
        frames: Innermost last; None if the job's own process does not answer.
        beside: Calls of the event loop's thread while the job waits in it.
    """

    place: str
    frames: list[Frame] | None
    beside: list[Frame]


def stack_in(thread: int, coroutine: Any) -> Stack:
    """Return the stack of a thread's job, or the calls that its waiting `async def` awaits."""
    place, calls = _place_of(thread), frames_of_thread(thread)
    if coroutine is None or coroutine.cr_running or not (waits := frames_of_coroutine(coroutine)):
        return Stack(place, calls, [])
    is_idle = bool(calls) and calls[-1][2].endswith(".select")
    return Stack(place, waits, [] if is_idle else calls)


def _place_of(thread: int) -> str:
    if thread == threading.main_thread().ident:
        return "main thread"
    # Jobs may name their threads.
    name = next((each.name for each in threading.enumerate() if each.ident == thread), "")
    return name if name == "event loop" else f"thread {name[:_LONGEST_TEXT]!r}"


def frames_of_thread(thread: int) -> list[Frame]:
    """List a running thread's calls, innermost last; none if it has ended."""
    found: list[Frame] = []
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None and len(found) < _MOST:
        found.append(_described(frame))
        frame = frame.f_back
    return shortened(found[::-1])


def frames_of_coroutine(coroutine: Any) -> list[Frame]:
    """List a waiting coroutine's awaited calls, innermost last."""
    found: list[Frame] = []
    while coroutine is not None and len(found) < _MOST:
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
    """Replace the middle of a deep stack by its number of calls."""
    left_out = len(frames) - _OUTERMOST - _INNERMOST
    if left_out <= 0:
        return frames
    return [*frames[:_OUTERMOST], ("", 0, f"({left_out} more calls)"), *frames[-_INNERMOST:]]


def _described(frame: FrameType) -> Frame:
    code = frame.f_code
    # None while a call is being entered.
    line: int | None = frame.f_lineno
    return code.co_filename[:_LONGEST_TEXT], line or code.co_firstlineno, code.co_qualname[:_LONGEST_TEXT]
