"""Tasks with options of `@job`, and the registration of each task as a job under its dotted path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from drain.contrib.django.framework import Task
from drain.contrib.django.options import OF_JOBS
from drain.contrib.django.running import function_of
from drain.jobs import registry
from drain.jobs.keys import KeyOption
from drain.jobs.options import ErrorClasses

# Tasks by dotted path: the first of each, as its module defines it.
_tasks: dict[str, Task] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTask(Task):
    """Task of a `DrainBackend`: `@task(max_attempts=3)` gives it options of `@job`, which count before the backend's.

    Attributes:
        max_attempts: Attempts that may fail before the task is FAILED; 0 for no limit.
        timeout_seconds: Timeout of one attempt.
        retry_base_seconds: Wait after the first failure; doubles with each further one.
        retry_cap_seconds: Upper bound of the wait between two attempts.
        retry_delays: Exact waits in seconds, instead of the two above.
        retry_on: Classes of the only errors after which the task is tried again.
        give_up_on: Classes of errors after which the task is FAILED at once.
        lease_seconds: Time after its worker's death at which the task runs elsewhere.
        heartbeat_seconds: Time between two extensions of the lease.
        max_execute_seconds: Time after which the stack of a running attempt is logged.
        isolated: True to run each attempt in a process of its own.
        key: Customer, tenant or resource, for the rules of the queue: a text, a number, or a function of the arguments.
    """

    max_attempts: int | None = None
    timeout_seconds: int | None = None
    retry_base_seconds: float | None = None
    retry_cap_seconds: float | None = None
    retry_delays: Sequence[float] | None = None
    retry_on: ErrorClasses | None = None
    give_up_on: ErrorClasses | None = None
    lease_seconds: float | None = None
    heartbeat_seconds: float | None = None
    max_execute_seconds: float | None = None
    isolated: bool | None = None
    key: KeyOption | None = None

    def __post_init__(self) -> None:
        Task.__post_init__(self)
        register(self)


def options_of(task: Task) -> dict[str, Any]:
    """Collect the options of `@job` that hold for a task: its own, and for the rest those of its backend."""
    options: dict[str, Any] = dict(getattr(task.get_backend(), "job_options", {}))
    if isinstance(task, DrainTask):
        own = {each.name: getattr(task, each.name) for each in fields(DrainTask) if each.name in OF_JOBS}
        options |= {name: value for name, value in own.items() if value is not None}
    return options


def register(task: Task) -> None:
    """Register a task as the job of its dotted path, unless one is.

    Raises:
        ValueError: An option has an impossible value, or another function has this name.
    """
    name = task.module_path
    if name not in _tasks:
        registry.job(name=name, queue=task.queue_name, result="keep", **options_of(task))(function_of(task))
        _tasks[name] = task


def find(name: str) -> Task | None:
    """Find the task with this dotted path, and import its module for that; None if there is none."""
    if name not in _tasks:
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(import_module(module), attribute, None)
        # The module may have been removed since, or have another name than any module can have.
        except (ImportError, ValueError):
            return None
        if name not in _tasks and isinstance(found, Task) and found.module_path == name:
            register(found)
    return _tasks.get(name)


def register_all_of(module: object) -> None:
    """Register the tasks that a module defines for backends of other classes: they may be sent here by `using()`."""
    for value in list(vars(module).values()):
        if isinstance(value, Task):
            register(value)
