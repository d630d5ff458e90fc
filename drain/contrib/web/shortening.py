"""Bounded text of large values."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

# Maximum characters of a value and of an error, whose traceback workers bound.
VALUE, ERROR = 4_000, 40_000


class Shown(NamedTuple):
    """Text; `left_out` counts omitted characters, None if unknown."""

    text: str
    left_out: int | None = 0


def shown(value: Any) -> Shown:
    """Format as JSON, indented if short."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
        if len(text) > VALUE:
            return Shown(text[:VALUE], len(text) - VALUE)
        return Shown(json.dumps(value, ensure_ascii=False, default=str, indent=2))
    # Nested beyond Python's recursion limit.
    except RecursionError:
        return Shown("(nested too deep to be shown here)", None)


def shown_error(error: Any) -> Shown:
    """Format type, message and traceback."""
    if not isinstance(error, dict):
        return shown(error)
    kind, message, traceback = (str(error.get(name) or "") for name in ("type", "message", "traceback"))
    summary = f"{kind}: {message}" if kind else message
    # A traceback already ends with the summary.
    text = traceback.rstrip("\n") if summary and summary in traceback else f"{traceback}{summary}"
    return Shown(text[:ERROR], max(0, len(text) - ERROR))
