"""Tasks with options of `@job`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from drain.contrib.django.framework import Task
from drain.contrib.django.options import OF_JOBS
from drain.contrib.django.running import function_of
from drain.jobs import registry
from drain.jobs.dependencies import AfterFunction
from drain.jobs.keys import KeyOption
from drain.jobs.options import ErrorClasses

_tasks: dict[str, Task] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTask(Task):
    """Task with options of `@job`, as in `@task(max_attempts=3)`; they override the backend's.

    Attributes:
        max_attempts: Attempts before the task is FAILED; 0 for no limit.
        timeout_seconds: Per attempt.
        retry_base_seconds: Wait after the first failure, then doubled.
        retry_cap_seconds: Longest wait between attempts.
        retry_delays: Exact waits in seconds instead.
        retry_on: Error classes that are retried; others are not.
        give_up_on: Error classes that make the task FAILED at once.
        lease_seconds: Time after a worker's death until the task runs elsewhere.
        heartbeat_seconds: Time between extensions of the lease.
        max_execute_seconds: Time after which a running attempt's stack is logged.
        isolated: Run each attempt in its own process.
        key: Customer, tenant or resource, for queue rules: text, number, or a function of the arguments.
        after: Function of the arguments that returns ids of jobs to wait for.
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
    after: AfterFunction | None = None

    def __post_init__(self) -> None:
        Task.__post_init__(self)
        register(self)


def options_of(task: Task) -> dict[str, Any]:
    """Return a task's options of `@job`: its own over its backend's."""
    options: dict[str, Any] = dict(getattr(task.get_backend(), "job_options", {}))
    if isinstance(task, DrainTask):
        own = {each.name: getattr(task, each.name) for each in fields(DrainTask) if each.name in OF_JOBS}
        options |= {name: value for name, value in own.items() if value is not None}
    return options


def register(task: Task) -> None:
    """Register a task once under its dotted path."""
    name = task.module_path
    if name not in _tasks:
        registry.job(name=name, queue=task.queue_name, result="keep", **options_of(task))(function_of(task))
        _tasks[name] = task


def find(name: str) -> Task | None:
    """Import a task by its dotted path; None if missing."""
    if name not in _tasks:
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(import_module(module), attribute, None)
        # The module may be gone, or its name invalid.
        except (ImportError, ValueError):
            return None
        if name not in _tasks and isinstance(found, Task) and found.module_path == name:
            register(found)
    return _tasks.get(name)


def register_all_of(module: object) -> None:
    """Register a module's tasks, also of other backends: `using()` may send them here."""
    for value in list(vars(module).values()):
        if isinstance(value, Task):
            register(value)
