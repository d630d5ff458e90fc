"""Idempotency: a job that is staged again under the same idempotency key is the job that is there already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from drain.errors import IdempotencyConflictError
from drain.failpoints import FailurePoint, failpoint
from drain.jobs import callers
from drain.jobs.callers import Connectable
from drain.jobs.values import as_key, as_seconds
from drain.tables import idempotency

# Time for which a key is kept, unless the application says otherwise.
DEFAULT_PERIOD = timedelta(days=7)
_LONGEST_PERIOD = timedelta(days=3650)
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
    text = as_key("idempotency_key", key)
    seconds = as_seconds("idempotency_period", DEFAULT_PERIOD if period is None else period, _LONGEST_PERIOD)
    parameters = {"idempotency_key": text, "seconds": seconds, "job": _object(columns)}
    (job_id,) = callers.insert(connection, idempotency.STAGE_ONCE, parameters)
    failpoint(FailurePoint.STAGED_ONCE)
    if job_id < 0:
        raise IdempotencyConflictError(
            f"the idempotency key {text!r:.100} is that of job {-job_id}, which has another name or other arguments"
        )
    return int(job_id)


def _object(columns: Mapping[str, Any]) -> str:
    """Write the columns as one JSON object; what is JSON already is put in as it is."""
    members = (f'"{name}":{_value(name, value)}' for name, value in columns.items())
    return f"{{{','.join(members)}}}"


def _value(name: str, value: Any) -> str:
    if name in _JSON:
        return str(value)
    return json.dumps(value.isoformat() if isinstance(value, datetime) else value)
