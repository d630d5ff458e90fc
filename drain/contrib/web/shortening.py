"""Large values of jobs: shown up to a bound, with the number of the characters that are left out."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

# Upper bounds of the characters that a page shows of a value, and of an error, whose traceback a worker bounds itself.
VALUE, ERROR = 4_000, 40_000


class Shown(NamedTuple):
    """Text of a value for a page.

    Attributes:
        text: Text, or its beginning.
        left_out: Number of the characters that are left out; None if it is not known.
    """

    text: str
    left_out: int | None = 0


def shown(value: Any) -> Shown:
    """Write a value as JSON, indented if that is short."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
        if len(text) > VALUE:
            return Shown(text[:VALUE], len(text) - VALUE)
        return Shown(json.dumps(value, ensure_ascii=False, default=str, indent=2))
    # Nested deeper than Python goes.
    except RecursionError:
        return Shown("(nested too deep to be shown here)", None)


def shown_error(error: Any) -> Shown:
    """Write an error as its type, its message and its traceback."""
    if not isinstance(error, dict):
        return shown(error)
    kind, message, traceback = (str(error.get(name) or "") for name in ("type", "message", "traceback"))
    summary = f"{kind}: {message}" if kind else message
    # The last lines of a traceback say the same.
    text = traceback.rstrip("\n") if summary and summary in traceback else f"{traceback}{summary}"
    return Shown(text[:ERROR], max(0, len(text) - ERROR))
