"""Results of jobs as JSON."""

from __future__ import annotations

from typing import Any

from drain.errors import StageError
from drain.jobs import values
from drain.workers.errors import UnfitResultError

# Bytes of JSON, and nesting, which PostgreSQL bounds by its stack.
MOST_BYTES = 65_536
_DEEPEST = 500


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
    if values.is_deeper(text, _DEEPEST):
        raise UnfitResultError(
            f"the {what} has lists or objects within each other, more than {_DEEPEST} deep"
        )
    return text
