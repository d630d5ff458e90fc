"""Idempotency keys: staging again returns the existing job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from drain.errors import IdempotencyConflictError
from drain.failpoints import FailurePoint, failpoint
from drain.jobs.values import as_key, as_seconds
from drain.tables import idempotency

DEFAULT_PERIOD = timedelta(days=7)
_LONGEST_PERIOD = timedelta(days=3650)
# JSON already.
_JSON = frozenset({"job_args", "job_kwargs", "context", "after"})


def statement(key: str, period: timedelta | None, columns: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Build the statement that stages a job once per key; see `check_answer`."""
    text = as_key("idempotency_key", key)
    seconds = as_seconds("idempotency_period", DEFAULT_PERIOD if period is None else period, _LONGEST_PERIOD)
    return idempotency.STAGE_ONCE, {"idempotency_key": text, "seconds": seconds, "job": _object(columns)}


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


def _object(columns: Mapping[str, Any]) -> str:
    members = (f'"{name}":{_value(name, value)}' for name, value in columns.items())
    return f"{{{','.join(members)}}}"


def _value(name: str, value: Any) -> str:
    if name in _JSON:
        return str(value)
    return json.dumps(value.isoformat() if isinstance(value, datetime) else value)
