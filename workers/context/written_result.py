"""Results of jobs as JSON."""

from __future__ import annotations

import re
from typing import Any

from drain.errors import StageError
from drain.jobs import values
from drain.workers.errors import UnfitResultError

# Bytes of JSON, and nesting, which PostgreSQL bounds by its stack.
MOST_BYTES = 65_536
_DEEPEST = 500
_BRACKETS = re.compile(r"[][{}]")
_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"')


def written(job_id: int, value: Any, step: str = "") -> str:
    """Serialize the result of a job or its step, or raise UnfitResultError."""
    what = f"result of step {step!r} of job {job_id}" if step else f"result of job {job_id}"
    try:
        text = values.as_json(what, value)
    except StageError as error:
        raise UnfitResultError(str(error)) from None
    size = len(text) if text.isascii() else len(text.encode())
    if size > MOST_BYTES:
        raise UnfitResultError(
            f"the {what} is too large: {size} bytes of JSON, and {MOST_BYTES} at most are kept; "
            "store it elsewhere and return its location"
        )
    if _is_deep(text):
        raise UnfitResultError(
            f"the {what} has lists or objects within each other, more than {_DEEPEST} deep"
        )
    return text


def _is_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= _DEEPEST:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_TEXTS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > _DEEPEST:
            return True
    return False
