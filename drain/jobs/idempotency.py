"""Idempotency: a job that is staged again under the same idempotency key is the job that is there already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from drain.errors import IdempotencyConflictError
from drain.failpoints import FailurePoint, failpoint
from drain.jobs.values import as_key, as_seconds
from drain.tables import idempotency

# Time for which a key is kept, unless the application says otherwise.
DEFAULT_PERIOD = timedelta(days=7)
_LONGEST_PERIOD = timedelta(days=3650)
# Columns whose values are JSON already.
_JSON = frozenset({"job_args", "job_kwargs", "context"})


def statement(key: str, period: timedelta | None, columns: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Build the statement that stages a job unless one was staged under this key, and the key is kept still.

    It returns one number, for `check_answer`.

    Args:
        key: Idempotency key.
        period: Time for which the key is kept, if the job is new; None for a week.
        columns: Columns of the job that have a value.

    Raises:
        StageError: Key or period are impossible ones.
    """
    text = as_key("idempotency_key", key)
    seconds = as_seconds("idempotency_period", DEFAULT_PERIOD if period is None else period, _LONGEST_PERIOD)
    return idempotency.STAGE_ONCE, {"idempotency_key": text, "seconds": seconds, "job": _object(columns)}


def check_answer(key: str, number: int) -> None:
    """Check the number that the statement has returned: the id of the job, and a negative one for another job.

    Raises:
        IdempotencyConflictError: The job under this key has another name or other arguments. Nothing was staged.
    """
    failpoint(FailurePoint.STAGED_ONCE)
    if number < 0:
        raise IdempotencyConflictError(
            f"the idempotency key {str.__str__(key)!r:.100} is that of job {-number}, which has another name or other "
            "arguments"
        )


def _object(columns: Mapping[str, Any]) -> str:
    """Write the columns as one JSON object; what is JSON already is put in as it is."""
    members = (f'"{name}":{_value(name, value)}' for name, value in columns.items())
    return f"{{{','.join(members)}}}"


def _value(name: str, value: Any) -> str:
    if name in _JSON:
        return str(value)
    return json.dumps(value.isoformat() if isinstance(value, datetime) else value)
