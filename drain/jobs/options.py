"""Name and options of a registered job."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Protocol, cast, runtime_checkable

from drain.errors import StageError
from drain.formatting import visible
from drain.jobs import objectives
from drain.jobs.dependencies import AfterFunction, check_registered
from drain.jobs.keys import NO_KEYS, KeyOption, Keys
from drain.jobs.timetable import check_schedule
from drain.jobs.values import LARGEST_INTEGER
from drain.tables.limits import DEFAULT_LEASE_SECONDS, DEFAULT_MAX_ATTEMPTS, DEFAULT_TIMEOUT_SECONDS, Limits

log = logging.getLogger(__name__)

DEFAULT_QUEUE = "default"
# How a job's commit reaches disk.
FLUSHED, GROUPED, SHARED = "flushed", "grouped", "shared"
DISCARD, KEEP = "discard", "keep"
ErrorClasses = tuple[type[BaseException], ...]
_LONGEST_WAIT_SECONDS = 365 * 24 * 3600
# Shorter ones would expire before a heartbeat.
_SHORTEST_LEASE_SECONDS = 0.1
_LONGEST_LEASE_SECONDS = 24 * 3600
_KINDS: dict[str, Any] = {
    "max_attempts": int,
    "timeout_seconds": int,
    "retry_base_seconds": int | float,
    "retry_cap_seconds": int | float,
    "lease_seconds": int | float,
    "heartbeat_seconds": int | float | None,
    "max_execute_seconds": int | float | None,
}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of a registered job, documented in `registry.job`; rows may override them."""

    queue: str = DEFAULT_QUEUE
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    retry_base_seconds: float = 2.0
    retry_cap_seconds: float = 3600.0
    retry_delays: Sequence[float] | None = None
    retry_on: ErrorClasses | None = None
    give_up_on: ErrorClasses | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    heartbeat_seconds: float | None = None
    max_execute_seconds: float | None = None
    isolated: bool = False
    commit: str = FLUSHED
    cron: str | None = None
    timezone: str = "UTC"
    missed: str = "last"
    key: KeyOption | None = None
    unique_key: KeyOption | None = None
    keep: str | None = None
    quiet: timedelta | None = None
    result: str = DISCARD
    slo: str | None = None
    after: AfterFunction | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.queue, str) or not self.queue:
            raise ValueError("queue must be a non-empty name")
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not _is_a(kind, value):
                whole = "whole " if kind is int else ""
                raise ValueError(f"{name} must be a {whole}number, not {value!r}")
        if self.isolated not in (True, False):
            raise ValueError(f"isolated must be True or False, not {self.isolated!r}")
        if self.commit not in (FLUSHED, GROUPED, SHARED):
            raise ValueError(f'commit must be "{FLUSHED}", "{GROUPED}" or "{SHARED}", not {self.commit!r}')
        if self.commit == SHARED and self.isolated:
            raise ValueError('commit="shared" needs isolated=False: an isolated job has its own process')
        if self.result not in (DISCARD, KEEP):
            raise ValueError(f'result must be "{KEEP}" or "{DISCARD}", not {self.result!r}')
        objectives.check(self.slo)
        # The caller's lists may change.
        object.__setattr__(self, "retry_delays", _waits(self.retry_delays))
        for name in ("retry_on", "give_up_on"):
            object.__setattr__(self, name, _error_classes(name, getattr(self, name)))
        _check_retried(self.retry_on, self.give_up_on)
        self._check_ranges()
        self._check_schedule()
        Keys(self.key, self.unique_key, self.keep, self.quiet).check()
        check_registered(self.after, self.cron)

    def _check_ranges(self) -> None:
        if not 0 <= self.max_attempts <= LARGEST_INTEGER:
            raise ValueError("max_attempts must be a whole number, 0 for no limit")
        if not 0 < self.timeout_seconds <= LARGEST_INTEGER:
            raise ValueError("timeout_seconds must be a whole number above 0")
        if not 0 < self.retry_base_seconds <= self.retry_cap_seconds <= _LONGEST_WAIT_SECONDS:
            raise ValueError(
                "retry_base_seconds must be above 0 and at most retry_cap_seconds, and that at most a year"
            )
        if not _SHORTEST_LEASE_SECONDS <= self.lease_seconds <= _LONGEST_LEASE_SECONDS:
            raise ValueError("lease_seconds must be at least a tenth of a second and at most a day")
        if not 0 < self.heartbeat <= self.lease_seconds / 2:
            raise ValueError(
                "heartbeat_seconds must be above 0, and lease_seconds at least twice that, "
                "so that one heartbeat may be missed"
            )
        if self.max_execute_seconds is not None and not 0 < self.max_execute_seconds <= _LONGEST_WAIT_SECONDS:
            raise ValueError("max_execute_seconds must be above 0 and at most a year")

    def rule_against(self, kind: type[BaseException]) -> str | None:
        """Option that forbids a retry after this error, if any."""
        if issubclass(kind, self.give_up_on or ()):
            return "give_up_on"
        if self.retry_on is not None and not issubclass(kind, self.retry_on):
            return "retry_on"
        return None

    def _check_schedule(self) -> None:
        if self.cron is not None:
            check_schedule(self.cron, self.timezone, self.missed)
        elif (self.timezone, self.missed) != ("UTC", "last"):
            raise ValueError("timezone and missed need cron")

    @property
    def heartbeat(self) -> float:
        """Seconds between heartbeats."""
        return self.lease_seconds / 3 if self.heartbeat_seconds is None else self.heartbeat_seconds

    @property
    def keys(self) -> Keys:
        """Default keys."""
        if self.key is None and self.unique_key is None and self.keep is None and self.quiet is None:
            return NO_KEYS
        return Keys(self.key, self.unique_key, self.keep, self.quiet)

    @property
    def keeps_result(self) -> bool:
        """True if return values are kept."""
        return self.result == KEEP

    @property
    def limits(self) -> Limits:
        """Limits for claims."""
        return Limits(self.max_attempts, self.timeout_seconds, self.lease_seconds)


def backoff_seconds(base_seconds: float, cap_seconds: float, failures: int) -> float:
    """Return the wait after some failures; jitter keeps those that failed together apart."""
    # Bounded: the float would overflow.
    step = min(cap_seconds, base_seconds * 2.0 ** min(failures - 1, 64))
    return step * random.uniform(0.5, 1.0)  # noqa: S311


def _is_a(kind: Any, value: object) -> bool:
    # True is an int, but a mistake here.
    return isinstance(value, kind) and not isinstance(value, bool)


def _waits(delays: object) -> tuple[float, ...] | None:
    if delays is None:
        return None
    if not isinstance(delays, list | tuple) or not delays or not all(map(_is_wait, delays)):
        raise ValueError(
            f"retry_delays must be a list of seconds up to a year, such as [10, 30, 60], not {delays!r:.100}"
        )
    return tuple(delays)


def _is_wait(value: Any) -> bool:
    return _is_a(int | float, value) and 0 <= value <= _LONGEST_WAIT_SECONDS


def _error_classes(name: str, classes: object) -> ErrorClasses | None:
    if classes is None:
        return None
    if not isinstance(classes, list | tuple) or not classes or not all(map(_is_error_class, classes)):
        raise ValueError(
            f"{name} must be a tuple of exception classes, such as (OSError,), not {classes!r:.100}"
        )
    return tuple(classes)


def _is_error_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _check_retried(retry_on: ErrorClasses | None, give_up_on: ErrorClasses | None) -> None:
    covered = [kind for kind in retry_on or () if issubclass(kind, give_up_on or ())]
    if covered:
        name = covered[0].__qualname__
        raise ValueError(f"retry_on contains {name}, which give_up_on covers: it would never be retried")


@runtime_checkable
class RegisteredJob(Protocol):
    """Function registered by `@job`."""

    job_name: str
    job_options: JobOptions

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check arguments."""


# Set by `registry`, which imports this module.
look_up: Callable[[str], RegisteredJob | None] = lambda _name: None  # noqa: E731


@lru_cache(maxsize=1000)
def warn_of_unknown(name: str) -> None:
    """Log once that a name is not registered."""
    log.warning(
        "a job is staged as %r, which is not registered here: it will die unless its workers register this name",
        visible(name),
        extra={"event": "job_not_registered"},
    )


def dotted_name(function: Callable[..., Any]) -> str:
    """Return a function's importable name.

    Raises:
        StageError: A lambda, a nested function, or one of the running script.
    """
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not name or not module or "<" in name:
        shown = visible(repr(function))[:200]
        raise StageError(f"{shown} has no name that a worker could import; use a module-level function")
    if module == "__main__":
        # For `python -m shop.jobs`, the spec has the real name.
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec.name if spec is not None else None
    if module is None:
        raise StageError(
            f"{name} is defined in the script that is being run; "
            "move it into a module that workers can import, or give it a name: @job(name=...)"
        )
    return f"{module}.{name}"


def name_and_options(
    job: str | Callable[..., Any] | RegisteredJob,
) -> tuple[str, JobOptions | None]:
    """Name of a job, and its options if registered.

    Raises:
        StageError: Neither a name, nor a function with an importable name.
    """
    if isinstance(job, str):
        return job, None
    # isinstance() with a protocol takes 10 µs on Python 3.11, a tenth of a `stage`.
    options = getattr(job, "job_options", None)
    if isinstance(options, JobOptions):
        return cast(RegisteredJob, job).job_name, options
    if callable(job):
        return dotted_name(job), None
    raise StageError(f"a job must be a name or a function, not a {type(job).__name__}")
