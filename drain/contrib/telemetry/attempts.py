"""Attempts as telemetry tells of them: the trace context of a job, and what an exception means."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

FAILED, DEFERRED, INTERRUPTED = "failed", "deferred", "interrupted"


def carrier(context: str | None, *names: str) -> dict[str, str]:
    """Read those members of a job's context that are texts and have one of these names."""
    if context is None or not any(name in context for name in names):
        return {}
    read = json.loads(context)
    if not isinstance(read, dict):
        return {}
    return {name: read[name] for name in names if isinstance(read.get(name), str)}


def meaning(error: BaseException) -> str:
    """Return what the exception of an attempt means: it failed, it will go on later, or it was interrupted."""
    errors = _errors()
    if isinstance(error, (errors.Defer, errors.RateLimited)):
        return DEFERRED
    if isinstance(error, (errors.WorkerStoppedError, errors.JobCancelledError)):
        return INTERRUPTED
    return FAILED


def failure_of(error: BaseException) -> BaseException:
    """Return the error that is reported for a failed attempt."""
    failure: BaseException = _errors().failure_of(error)
    return failure


def is_last(error: BaseException) -> bool:
    """Return whether the running job is dead once this error has ended its attempt."""
    return bool(import_module("drain.workers.execution.attempt").is_last(error))


def _errors() -> Any:
    # Imported by name: the modules of `drain` do not depend on `workers`.
    return import_module("drain.workers.errors")
