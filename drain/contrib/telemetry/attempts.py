"""Trace context of a job, and meaning of its exception."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

FAILED, DEFERRED, INTERRUPTED = "failed", "deferred", "interrupted"


def carrier(context: str | None, *names: str) -> dict[str, str]:
    """Return named texts of a job's context."""
    if context is None or not any(name in context for name in names):
        return {}
    read = json.loads(context)
    if not isinstance(read, dict):
        return {}
    return {name: read[name] for name in names if isinstance(read.get(name), str)}


def meaning(error: BaseException) -> str:
    """Classify an exception."""
    errors = _errors()
    if isinstance(error, (errors.Defer, errors.Parked, errors.RateLimited)):
        return DEFERRED
    if isinstance(error, (errors.WorkerStoppedError, errors.JobCancelledError)):
        return INTERRUPTED
    return FAILED


def failure_of(error: BaseException) -> BaseException:
    """Return the error to report."""
    failure: BaseException = _errors().failure_of(error)
    return failure


def is_last(error: BaseException) -> bool:
    """Return True if the running job is dead after this error."""
    return bool(import_module("drain.workers.execution.attempt").is_last(error))


def _errors() -> Any:
    # By name: `drain` does not depend on `workers`.
    return import_module("drain.workers.errors")
