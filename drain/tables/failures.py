"""Form of `last_error`: the newest error, nine earlier ones, and the first."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from drain.tables.columns import ATTEMPTS

# An earlier error keeps the start of its message and the end of its traceback.
EARLIER, TYPE, MESSAGE, TRACEBACK = 9, 200, 500, 2_000

_AS_EARLIER = f"""pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
            'type', pg_catalog."left"(last_error ->> 'type'::text, {TYPE}),
            'message', pg_catalog."left"(last_error ->> 'message'::text, {MESSAGE}),
            'traceback', pg_catalog."right"(last_error ->> 'traceback'::text, {TRACEBACK}),
            'at', last_error -> 'at'::text, 'attempt', last_error -> 'attempt'::text,
            'worker', last_error -> 'worker'::text, 'claimed_at', last_error -> 'claimed_at'::text))"""


def _now(attempt: str) -> str:
    # The attempt is null if it did not count; the same one again repeats the statement.
    return f"""%(error)s::jsonb || pg_catalog.jsonb_build_object('at', clock_timestamp(), 'attempt', {attempt},
        'worker', claimed_by, 'claimed_at', claimed_at)
        || CASE WHEN last_error IS NULL THEN '{{}}'::jsonb ELSE pg_catalog.jsonb_build_object(
            'first', coalesce(last_error -> 'first'::text, last_error - '{{traceback,earlier}}'::text[]),
            'earlier', CASE WHEN last_error -> 'attempt'::text IN ('null'::jsonb, pg_catalog.to_jsonb({attempt}))
                THEN coalesce(last_error -> 'earlier'::text, '[]'::jsonb)
                ELSE pg_catalog.jsonb_build_array({_AS_EARLIER})
                    || pg_catalog.jsonb_path_query_array(last_error, '$.earlier[0 to {EARLIER - 2}]') END) END"""


# The next error replaces an interruption.
ERROR_NOW = _now(ATTEMPTS)
INTERRUPTION_NOW = _now("NULL::integer")
# Without earlier errors, to keep the history short.
WITHOUT_EARLIER = """CASE WHEN pg_catalog.jsonb_typeof(last_error) = 'object'::text
        THEN last_error - 'earlier'::text ELSE last_error END"""


def earlier_errors(last_error: object) -> list[dict[str, Any]]:
    """List earlier errors, newest first; after ten, the first has no traceback."""
    if not isinstance(last_error, dict):
        return []
    earlier, first = last_error.get("earlier"), last_error.get("first")
    found = [error for error in earlier if isinstance(error, dict)] if isinstance(earlier, list) else []
    # A repeated write of the first failure keeps it as the first too.
    if isinstance(first, dict) and all(not _is_same(first, error) for error in (last_error, *found)):
        # Versions that kept two errors did not number them.
        found.append({"attempt": 1, **first})
    return found


def is_interruption(error: Mapping[str, Any]) -> bool:
    """Return True if the worker had to stop."""
    return str(error.get("type") or "").endswith("WorkerStoppedError")


def title_of(error: Mapping[str, Any]) -> str:
    """Name an attempt and its end."""
    return "Interrupted" if is_interruption(error) else f"Attempt {error.get('attempt') or '?'} failed"


def summary_of(error: Mapping[str, Any]) -> str:
    """Return the class and the message's first line."""
    message = str(error.get("message") or "").strip().partition("\n")[0]
    kind = str(error.get("type") or "").rpartition(".")[2]
    return ": ".join(part for part in (kind, message) if part)


def seconds_of(error: Mapping[str, Any]) -> float | None:
    """Return the failed attempt's duration, if recorded."""
    began_at, at = time_of(error.get("claimed_at")), time_of(error.get("at"))
    return max((at - began_at).total_seconds(), 0.0) if began_at and at else None


def time_of(text: object) -> datetime | None:
    """Parse a time; None without a time zone."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None


def _is_same(first: Mapping[str, Any], error: Mapping[str, Any]) -> bool:
    return first.get("at") == error.get("at") or (
        first.get("claimed_at") is not None and first["claimed_at"] == error.get("claimed_at")
    )
