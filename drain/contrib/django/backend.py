"""Task backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core import checks
from django.db import connections
from django.utils import timezone

import drain
from drain.contrib.django import options
from drain.contrib.django.connections import driver, require_postgres
from drain.contrib.django.framework import (
    BaseTaskBackend,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    send,
    signals,
)
from drain.contrib.django.results import BACKEND, ENQUEUED_AT, DrainResult, result_of
from drain.contrib.django.task import DrainTask, find, options_of
from drain.errors import DrainError, UnknownJobError
from drain.jobs.values import LARGEST_ID
from drain.read import queries


class DrainBackend(BaseTaskBackend):
    """Task backend whose tasks commit with the request's transaction.

    Attributes:
        database: Alias of the database where tasks are staged: OPTIONS["database"].
        job_options: Options of `@job` from OPTIONS.

    Raises:
        InvalidTaskBackend: A setting is invalid.
    """

    task_class = DrainTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.database, self.job_options = options.read(alias, params)

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> DrainResult:
        """Stage a task in the open transaction; it runs once that has committed.

        Raises:
            InvalidTask: The task cannot run here.
            TypeError, ValueError: An argument is not serializable as JSON. Nothing was sent.
            django.db.Error: As for any statement.
        """
        self.validate_task(task)
        arguments, keywords = _as_json(task, args, kwargs)
        now = timezone.now()
        context = {BACKEND: self.alias, ENQUEUED_AT: now.isoformat()}
        chosen = options_of(task)
        connection = driver(self.database)
        with connections[self.database].wrap_database_errors:
            job_id = drain.stage(
                *(connection, task.module_path, arguments, keywords),
                queue=task.queue_name,
                priority=-int(task.priority) or None,
                run_at=_aware(task.run_after),
                max_attempts=chosen.get("max_attempts"),
                timeout_seconds=chosen.get("timeout_seconds"),
                key=getattr(task, "key", None),
                after=getattr(task, "after", None),
                context=context,
            )
        result = DrainResult(
            task=task,
            id=str(job_id),
            status=TaskResultStatus.READY,
            enqueued_at=now,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=arguments,
            kwargs=keywords,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        send(signals.task_enqueued, type(self), result)
        return result

    def get_result(self, result_id: str) -> DrainResult:
        """Return the state and result of a task.

        Raises:
            TaskResultDoesNotExist: The task was never enqueued, rolled back, or archived.
        """
        # int() also accepts digits of other scripts.
        text = str(result_id)
        if not (text.isascii() and text.isdecimal()) or int(text) > LARGEST_ID:
            raise TaskResultDoesNotExist(f"{text!r:.100} is not the id of a task, which is a whole number")
        connection = driver(self.database)
        try:
            with connections[self.database].wrap_database_errors:
                row = queries.job(connection, int(text))
        except UnknownJobError as error:
            raise TaskResultDoesNotExist(str(error)) from None
        task = find(row["job_name"])
        if task is None:
            raise TaskResultDoesNotExist(
                f"job {text} is not a task: {row['job_name']!r} is not the path of one"
            )
        return result_of(task, row)

    def check(self, **_kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the database, for `manage.py check`."""
        try:
            require_postgres(self.database)
        except DrainError as error:
            yield checks.Error(str(error), id="drain.E001")


def _as_json(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    try:
        return normalize_json(args), normalize_json(kwargs)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"an argument of {task.module_path} cannot be written as JSON ({error}): pass numbers, texts, lists and "
            "dicts, and ids in place of objects"
        ) from None


def _aware(time: datetime | None) -> datetime | None:
    return timezone.make_aware(time) if time is not None and timezone.is_naive(time) else time
