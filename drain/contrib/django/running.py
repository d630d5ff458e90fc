"""One attempt at a task in a worker."""

from __future__ import annotations

import json
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.utils import timezone

from drain.config import process_name
from drain.contrib.django.framework import (
    Task,
    TaskContext,
    TaskResultStatus,
    normalize_json,
    send,
    signals,
)
from drain.contrib.django.results import BACKEND, ENQUEUED_AT, DrainResult, as_of, described, time_of


def function_of(task: Task) -> Callable[..., Any]:
    """Build a task's function for workers.

    It keeps the name but not the annotations: arguments are plain JSON.
    """
    run: Callable[..., Any]
    if iscoroutinefunction(task.func):

        async def run_in_loop(*args: Any, **kwargs: Any) -> Any:
            attempt = TaskAttempt(task, args, kwargs)
            # Receivers may query the database, which Django allows only in threads.
            await sync_to_async(attempt.start)()
            try:
                value = attempt.checked(await task.func(*attempt.context, *args, **kwargs))
            except BaseException as error:
                await sync_to_async(attempt.fail)(error)
                raise
            await sync_to_async(attempt.succeed)(value)
            return value

        run = run_in_loop
    else:

        def run_here(*args: Any, **kwargs: Any) -> Any:
            attempt = TaskAttempt(task, args, kwargs)
            attempt.start()
            try:
                value = attempt.checked(task.func(*attempt.context, *args, **kwargs))
            except BaseException as error:
                attempt.fail(error)
                raise
            attempt.succeed(value)
            return value

        run = run_here
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(run, name, getattr(task.func, name))
    return run


class TaskAttempt:
    """One attempt; `context` is its first argument, if it takes one."""

    def __init__(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # By name: `drain` must not depend on `workers`.
        self._workers = import_module("drain.workers")
        self._interruption = import_module("drain.workers.context.current").current_attempt().interruption
        self._job = job = self._workers.current_job()
        staged_with = _read(job.context)
        now = timezone.now()
        alias = str(staged_with.get(BACKEND, task.backend))
        self.result = DrainResult(
            task=as_of(task, queue_name=job.queue, backend=alias),
            id=str(job.id),
            status=TaskResultStatus.RUNNING,
            enqueued_at=time_of(staged_with.get(ENQUEUED_AT)),
            started_at=now,
            last_attempted_at=now,
            finished_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=alias,
            errors=[],
            worker_ids=[process_name()],
            _attempts=job.attempt,
        )
        self.context = (TaskContext(task_result=self.result),) if task.takes_context else ()

    def start(self) -> None:
        """Send `task_started`."""
        self._send(signals.task_started)

    def checked(self, value: Any) -> Any:
        """Normalize a value by JSON.

        Raises:
            Dead: It is not serializable. The work is done, and a retry would return the same.
        """
        try:
            return normalize_json(value)
        except (TypeError, ValueError) as error:
            name = self.result.task.module_path
            raise self._workers.Dead(
                f"the value that {name} returned cannot be kept as JSON ({error}): return numbers, texts, lists "
                "and dicts"
            ) from error

    def succeed(self, value: Any) -> None:
        """Send `task_finished` as SUCCESSFUL."""
        object.__setattr__(self.result, "_return_value", value)
        self._end(TaskResultStatus.SUCCESSFUL)

    def fail(self, error: BaseException) -> None:
        """Send `task_finished` as FAILED if no retry follows."""
        # On an event loop every interruption is a CancelledError; find its cause.
        cause = self._interruption.cause()
        raised = cause if cause is not None and isinstance(error, CancelledError) else error
        if self._job.finished:
            self._end(TaskResultStatus.SUCCESSFUL)
        elif self._is_last(raised, cause):
            failure = import_module("drain.workers.errors").failure_of(raised)
            self.result.errors.append(described(failure))
            self._end(TaskResultStatus.FAILED)

    def _is_last(self, error: BaseException, cause: Exception | None) -> bool:
        errors = import_module("drain.workers.errors")
        taken_away = (errors.LeaseLostError, errors.JobCancelledError, errors.WorkerStoppedError)
        if isinstance(cause, taken_away) or isinstance(error, (*taken_away, KeyboardInterrupt)):
            return False
        return bool(import_module("drain.workers.execution.attempt").is_last(error))

    def _end(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())
        self._send(signals.task_finished)

    def _send(self, signal: Any) -> None:
        send(signal, type(self.result.task.get_backend()), self.result)


def _read(context: str | None) -> Mapping[str, Any]:
    found = json.loads(context) if context else {}
    return found if isinstance(found, dict) else {}
