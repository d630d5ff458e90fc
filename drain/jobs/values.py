"""Column values of a staged row, validated before anything is sent.

Functions raise StageError where the database would refuse. None passes.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

from drain.config import QUEUE_CHARACTERS, QUEUE_NAME
from drain.errors import StageError
from drain.jobs import codecs

# PostgreSQL's `integer`.
LARGEST_INTEGER = 2**31 - 1
LARGEST_ID = 2**63 - 1
# As in the schema.
LONGEST_KEY = 255
LONGEST_DESCRIPTION = 4096
# json.dumps() would build an encoder per value, for 2 µs.
_write = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=codecs.encode
).encode
# An escaped NUL, not an escaped backslash before u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
# As in the schema.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BRACKETS = re.compile(r"[][{}]")
_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"')
# Surrogates.
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def as_time(name: str, time: datetime | None) -> datetime | None:
    """Require a time zone."""
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise StageError(
            f"{name} must be a datetime, such as datetime.now(UTC) + ..., not a {name_of_type(time)}"
        )
    if time.utcoffset() is None:
        raise StageError(f"{name} has no time zone; use datetime.now(UTC) + ... or add tzinfo")
    return time


def as_later(name: str, time: timedelta | float) -> datetime:
    """Convert a timedelta or seconds to a time from now."""
    # True is an int.
    if isinstance(time, bool) or not isinstance(time, timedelta | int | float):
        raise StageError(f"{name} must be a timedelta or seconds, not a {name_of_type(time)}")
    try:
        length = time if isinstance(time, timedelta) else timedelta(seconds=time)
        later = datetime.now(UTC) + length
    except (ValueError, OverflowError):
        raise StageError(f"{name} must end before the year 10000: {time}") from None
    if length < timedelta():
        raise StageError(f"{name} must not be negative: {time}")
    return later


def as_context(context: Mapping[str, Any] | None) -> str | None:
    """Encode a context as JSON."""
    if context is None:
        return None
    if not isinstance(context, Mapping):
        raise StageError(f"context must be a mapping, not a {name_of_type(context)}")
    return as_json("context", dict(context))


def as_integer(name: str, number: int | None) -> int | None:
    """Convert to a plain `int`."""
    if number is None:
        return None
    # True is an int.
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise StageError(f"{name} must be a whole number, not a {name_of_type(number)}")
    number = operator.index(number)
    if not -LARGEST_INTEGER - 1 <= number <= LARGEST_INTEGER:
        raise StageError(f"{name} must lie between {-LARGEST_INTEGER - 1} and {LARGEST_INTEGER}")
    return number


def as_text(name: str, text: str | None) -> str | None:
    """Convert to a plain `str`: drivers would write an Enum's name."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise StageError(f"{name} must be a string, not a {name_of_type(text)}")
    if "\0" in text or (not text.isascii() and _HALF_CHARACTER.search(text)):
        raise StageError(
            f"{name} contains a NUL or lone surrogate, which PostgreSQL cannot store: {text!a:.100}"
        )
    return str.__str__(text)


def as_queue(queue: str | None) -> str | None:
    """Require a valid queue name."""
    queue = as_text("queue", queue)
    if queue is not None and not QUEUE_NAME.fullmatch(queue):
        raise StageError(f"{queue!r:.120} is not a queue name: {QUEUE_CHARACTERS}, at most 100 of them")
    return queue


def as_undo(*, undo: bool | str) -> bool | str | None:
    """Require True or the queue of the job that undoes a flow; return None for False."""
    return (undo or None) if isinstance(undo, bool) else as_queue(undo)


def as_key(name: str, text: str | None) -> str | None:
    """Require a valid key."""
    text = as_text(name, text)
    if text is not None and not 1 <= len(text) <= LONGEST_KEY:
        found = f"{len(text)} characters" if text else "an empty one"
        raise StageError(f"{name} must be a string of 1 to {LONGEST_KEY} characters, not {found}")
    return text


def as_name(name: str, text: str) -> str:
    """Require a valid key, which cannot be None."""
    found = as_key(name, text)
    if found is None:
        raise StageError(f"{name} must be a string, not None")
    return found


def as_description(text: str | None) -> str | None:
    """Require a text that a flow can have as its description."""
    text = as_text("description", text)
    if text is not None and len(text) > LONGEST_DESCRIPTION:
        raise StageError(
            f"description must have at most {LONGEST_DESCRIPTION:,} characters, not {len(text):,}"
        )
    return text


def as_event(event: str) -> str:
    """Require a valid name of an event."""
    text = as_name("the name of an event", event)
    if _CONTROL.search(text):
        raise StageError(f"the name of an event must not contain control characters: {event!a:.100}")
    return text


def as_seconds(name: str, time: timedelta | None, longest: timedelta) -> float | None:
    """Convert a timedelta, with a maximum."""
    if time is None:
        return None
    if not isinstance(time, timedelta):
        raise StageError(
            f"{name} must be a timedelta, such as timedelta(seconds=30), not a {name_of_type(time)}"
        )
    if not timedelta() < time <= longest:
        raise StageError(f"{name} must be above 0 and at most {longest.days} days, not {time}")
    return time.total_seconds()


def as_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str]:
    """Encode arguments as JSON."""
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise StageError(f"arguments must be a list or tuple, such as [42], not a {name_of_type(args)}")
    if not isinstance(kwargs, Mapping):
        raise StageError(f"keyword arguments must be a mapping, not a {name_of_type(kwargs)}")
    return as_json("arguments", list(args)), as_json("keyword arguments", dict(kwargs))


def as_json(part: str, value: Any) -> str:
    """Encode as JSON that PostgreSQL accepts."""
    try:
        text = _write(value)
        # PostgreSQL would refuse surrogates and NUL, but abort the transaction.
        text.encode()
        if "\\u0000" in text and _NUL.search(text):
            raise ValueError("a string contains a NUL character")
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise StageError(
            f"the {part} cannot be written as JSON ({error}); "
            "pass numbers, strings, lists and dicts, and ids instead of objects"
        ) from None


def is_deeper(text: str, levels: int) -> bool:
    """Return whether lists and objects in JSON are nested more than some levels deep."""
    if text.count("[") + text.count("{") <= levels:
        return False
    brackets = _BRACKETS.findall(_TEXTS.sub("", text))
    return max(accumulate(1 if each in "[{" else -1 for each in brackets), default=0) > levels


def name_of_type(value: object) -> str:
    """Type name, for errors."""
    return type(value).__name__
