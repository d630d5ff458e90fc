"""Idempotency: a job that is staged again under the same idempotency key is the job that is there already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from drain.errors import IdempotencyConflictError, StageError
from drain.failpoints import FailurePoint, failpoint
from drain.jobs import callers
from drain.jobs.callers import Connectable
from drain.jobs.values import as_text, name_of_type
from drain.tables import idempotency

# Time for which a key is kept, unless the application says otherwise.
DEFAULT_PERIOD = timedelta(days=7)
_LONGEST_PERIOD = timedelta(days=3650)
_LONGEST_KEY = 255
# Columns whose values are JSON already.
_JSON = frozenset({"job_args", "job_kwargs", "context"})


def stage_once(
    connection: Connectable, key: str, period: timedelta | None, columns: Mapping[str, Any]
) -> int:
    """Stage a job unless a job was staged under this key, and the key is kept still; returns the id of the job.

    Args:
        connection: As for `stage`.
        key: Idempotency key.
        period: Time for which the key is kept, if the job is new; None for a week.
        columns: Columns of the job that have a value.

    Raises:
        StageError: Key or period are impossible ones. Nothing was sent.
        IdempotencyConflictError: The job under this key has another name or other arguments. Nothing was staged.
    """
    text = as_text("idempotency_key", key)
    if not text or len(text) > _LONGEST_KEY:
        found = f"{len(text)} characters" if text else "an empty one"
        raise StageError(f"idempotency_key must be a text of 1 to {_LONGEST_KEY} characters, not {found}")
    parameters = {"idempotency_key": text, "seconds": _seconds(period), "job": _object(columns)}
    (job_id,) = callers.insert(connection, idempotency.stage_once_statement, parameters)
    failpoint(FailurePoint.STAGED_ONCE)
    if job_id < 0:
        raise IdempotencyConflictError(
            f"the idempotency key {text!r:.100} is that of job {-job_id}, which has another name or other arguments"
        )
    return int(job_id)


def _seconds(period: timedelta | None) -> float:
    if period is None:
        return DEFAULT_PERIOD.total_seconds()
    if not isinstance(period, timedelta):
        raise StageError(
            f"idempotency_period must be a timedelta, such as timedelta(days=30), not a {name_of_type(period)}"
        )
    if not timedelta() < period <= _LONGEST_PERIOD:
        raise StageError(f"idempotency_period must be above 0 and at most {_LONGEST_PERIOD.days} days")
    return period.total_seconds()


def _object(columns: Mapping[str, Any]) -> str:
    """Write the columns as one JSON object; what is JSON already is put in as it is."""
    members = (f'"{name}":{_value(name, value)}' for name, value in columns.items())
    return f"{{{','.join(members)}}}"


def _value(name: str, value: Any) -> str:
    if name in _JSON:
        return str(value)
    return json.dumps(value.isoformat() if isinstance(value, datetime) else value)
