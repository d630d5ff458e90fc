"""Idempotency keys: staging again returns the existing job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from drain.errors import IdempotencyConflictError, StageError
from drain.failpoints import FailurePoint, failpoint
from drain.jobs.values import as_key, as_seconds
from drain.tables import idempotency

DEFAULT_PERIOD = timedelta(days=7)
_LONGEST_PERIOD = timedelta(days=3650)
# JSON already.
_JSON = frozenset({"job_args", "job_kwargs", "context", "after"})


def check(key: str | None, period: timedelta | None) -> None:
    """Raise StageError for a period without a key."""
    if key is None and period is not None:
        raise StageError("idempotency_period needs an idempotency_key")


def statement(key: str, period: timedelta | None, columns: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Build the statement that stages a job once per key; see `check_answer`."""
    seconds = _seconds(DEFAULT_PERIOD if period is None else period)
    text = as_key("idempotency_key", key)
    return idempotency.STAGE_ONCE, {"idempotency_key": text, "seconds": seconds, "job": as_object(columns)}


def options(key: str | None, period: timedelta | None) -> dict[str, Any]:
    """Validate a flow's options, or raise StageError."""
    check(key, period)
    return {"idempotency_key": as_key("idempotency_key", key), "idempotency_period": _seconds(period)}


def _seconds(period: timedelta | None) -> float | None:
    return as_seconds("idempotency_period", period, _LONGEST_PERIOD)


def check_answer(key: str, number: int) -> None:
    """Check the returned number: the job's id, negative on a conflict.

    Raises:
        IdempotencyConflictError: Another name or other arguments. Nothing was staged.
    """
    failpoint(FailurePoint.STAGED_ONCE)
    if number < 0:
        raise IdempotencyConflictError(
            f"the idempotency key {str.__str__(key)!r:.100} is that of job {-number}, which has another name or other "
            "arguments"
        )


def as_object(columns: Mapping[str, Any]) -> str:
    """Encode a job's columns as a JSON object."""
    members = (f'"{name}":{_value(name, value)}' for name, value in columns.items())
    return f"{{{','.join(members)}}}"


def _value(name: str, value: Any) -> str:
    if name in _JSON:
        return str(value)
    return json.dumps(value.isoformat() if isinstance(value, datetime) else value)
