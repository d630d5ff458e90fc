"""The words that a job is described in: its name, and the options that a registration gives it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from drain.errors import StageError

DEFAULT_QUEUE = "default"
DEFAULT_MAX_ATTEMPTS = 10
DEFAULT_TIMEOUT_SECONDS = 180
# What the integer columns of the schema can hold.
_LARGEST_INTEGER = 2**31 - 1
_LONGEST_WAIT_SECONDS = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a registration says about every job of one name; a staged row may say otherwise.

    Attributes:
        queue: Queue that `.stage` puts the job into.
        max_attempts: Claims that may fail before the job is dead; 0 for no limit.
        timeout_seconds: How long one attempt may run.
        retry_base_seconds: Wait after the first failure; doubles with each further one.
        retry_cap_seconds: The longest wait between two attempts.
    """

    queue: str = DEFAULT_QUEUE
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    retry_base_seconds: float = 2.0
    retry_cap_seconds: float = 3600.0

    def __post_init__(self) -> None:
        if not self.queue:
            raise ValueError("queue must not be empty")
        if not isinstance(self.max_attempts, int) or not 0 <= self.max_attempts <= _LARGEST_INTEGER:
            raise ValueError("max_attempts must be a whole number, 0 for no limit")
        if not isinstance(self.timeout_seconds, int) or not 0 < self.timeout_seconds <= _LARGEST_INTEGER:
            raise ValueError("timeout_seconds must be a whole number above 0")
        if not 0 < self.retry_base_seconds <= self.retry_cap_seconds <= _LONGEST_WAIT_SECONDS:
            raise ValueError(
                "retry_base_seconds must be above 0 and at most retry_cap_seconds, and that at most a year"
            )


@runtime_checkable
class RegisteredJob(Protocol):
    """A function that `workers.job` has registered: it knows its name and its options."""

    job_name: str
    job_options: JobOptions


def dotted_name(function: Callable[..., Any]) -> str:
    """Name under which a worker can find `function`: its module and its qualified name.

    Raises:
        StageError: The function cannot be imported by that name: a lambda, a function inside of a
            function, or one of the script that is being run.
    """
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not name or not module or "<" in name:
        raise StageError(f"{function!r} has no name that a worker could import; use a function of a module")
    if module == "__main__":
        # `python -m shop.jobs` runs shop.jobs under another name, but remembers the real one.
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
    """Name of a job that was given by name, as a registered function, or as a plain function.

    Returns:
        The name, and the options of the registration where there is one.

    Raises:
        StageError: `job` is none of the three, or a function without an importable name.
    """
    if isinstance(job, str):
        return job, None
    if isinstance(job, RegisteredJob):
        return job.job_name, job.job_options
    if callable(job):
        return dotted_name(job), None
    raise StageError(f"a job is given by its name or as a function, not as a {type(job).__name__}")
