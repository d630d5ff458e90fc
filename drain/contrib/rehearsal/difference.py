"""Comparison of two ends."""

from __future__ import annotations

import json
import re

from drain.contrib.rehearsal.past import End

# Memory addresses differ between processes.
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b", re.IGNORECASE)
# PostgreSQL's message for a write on a read-only connection.
_READ_ONLY = "in a read-only transaction"
ELSEWHERE = (
    "it writes on its own connection, which a rehearsal keeps read-only; with drain.transaction() its writes "
    "are rolled back"
)


def difference(before: End, now: End) -> str | None:
    """Describe how two ends differ; None if they do not, as far as known.

    Only the end is known of the past, so times and writes are not compared.
    """
    if now.kind == "left its transaction":
        return "it ended its transaction with its own SQL, so it cannot be rehearsed"
    if _READ_ONLY in (now.message or "") and _READ_ONLY not in (before.message or ""):
        return ELSEWHERE
    if before.kind == "never ran":
        return f"it never ran before, and {_does(now)} now"
    if before.kind != now.kind:
        return f"it {_did(before)} before, and {_does(now)} now"
    return _difference_of_errors(before, now) or _difference_of_results(before.result, now.result)


def _difference_of_errors(before: End, now: End) -> str | None:
    if before.error != now.error:
        return f"it raises {now.error} now, and raised {before.error} before"
    if _comparable(before.message) != _comparable(now.message):
        return f"it raises {now.error} with another message"
    return None


def _difference_of_results(before: str | None, now: str | None) -> str | None:
    if before is None:
        return None
    if now is None:
        return "it kept a result before, and none now"
    return None if json.loads(before) == json.loads(now) else "its result is another one"


def _comparable(message: str | None) -> str | None:
    return None if message is None else _ADDRESS.sub("0x", message)


def _did(end: End) -> str:
    return f"raised {end.error}" if end.kind == "raised" else end.kind


def _does(end: End) -> str:
    return {
        "returned": "returns",
        "raised": f"raises {end.error}",
        "deferred": "asks to run later",
    }.get(end.kind, end.kind)
