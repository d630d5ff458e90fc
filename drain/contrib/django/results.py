"""State and result of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from drain.contrib.django.framework import (
    TASK_MAX_PRIORITY,
    TASK_MIN_PRIORITY,
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
)
from drain.tables.columns import BLOCKED_UNTIL
from drain.tables.failures import earlier_errors

# In a job's context: the backend's alias, and the time of `enqueue()`.
BACKEND, ENQUEUED_AT = "task_backend", "task_enqueued_at"
_CANCELLED = "drain.workers.errors.JobCancelledError"
_DEAD = "drain.workers.errors.JobDeadError"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult(TaskResult):
    """Result of a task; `worker_ids` has only the latest worker, `attempts` counts all."""

    _attempts: int = field(default=0)

    @property
    def attempts(self) -> int:
        """Number of attempts that count."""
        return self._attempts

    def refresh(self) -> None:
        """Read the state again."""
        self._take(self.task.get_backend().get_result(self.id))

    async def arefresh(self) -> None:
        """Read the state again."""
        self._take(await self.task.get_backend().aget_result(self.id))

    def _take(self, fresh: TaskResult) -> None:
        for each in fields(self):
            if each.name not in ("task", "id", "backend"):
                object.__setattr__(self, each.name, getattr(fresh, each.name))


def result_of(task: Task, row: Mapping[str, Any]) -> DrainResult:
    """Build a result from its job's row; `state` is the table."""
    context = row["context"] if isinstance(row["context"], dict) else {}
    alias = context.get(BACKEND, task.backend)
    staged_at, due_at = row["staged_at"], row["scheduled_at"]
    if due_at == BLOCKED_UNTIL:
        due_at = row.get("starts_at") or staged_at
    claimed_at = local(row.get("claimed_at"))
    worker = row.get("claimed_by") or row.get("finished_by")
    result = DrainResult(
        task=as_of(
            task,
            queue_name=row["queue"],
            priority=min(TASK_MAX_PRIORITY, max(TASK_MIN_PRIORITY, -row["priority"])),
            run_after=local(due_at) if due_at > staged_at else None,
            backend=alias,
        ),
        id=str(row["id"]),
        status=_status(row),
        enqueued_at=time_of(context.get(ENQUEUED_AT)) or local(staged_at),
        started_at=claimed_at,
        last_attempted_at=claimed_at,
        finished_at=local(row.get("finished_at") or row.get("died_at")),
        args=row["job_args"],
        kwargs=row["job_kwargs"],
        backend=alias,
        errors=list(_errors(row)),
        worker_ids=[worker] if worker else [],
        # The row counts an attempt claimed in a batch only when it ends.
        _attempts=(row.get("attempts") or 0) + bool(row.get("batched")),
    )
    object.__setattr__(result, "_return_value", row.get("result"))
    return result


def as_of(task: Task, **changes: Any) -> Task:
    """Return a task with a job's values; unchanged if its backend rejects them."""
    # The queue may have changed, or the backend been removed.
    with suppress(InvalidTask, ImproperlyConfigured):
        return replace(task, **changes)
    return task


def described(error: BaseException) -> TaskError:
    """Describe an exception for `errors`."""
    from traceback import format_exception

    kind = type(error)
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
        traceback="".join(format_exception(error)),
    )


def local(time: datetime | None) -> datetime | None:
    """Return a time as naive and local under USE_TZ=False."""
    if time is None or settings.USE_TZ or timezone.is_naive(time):
        return time
    naive: datetime = timezone.make_naive(time)
    return naive


def time_of(text: object) -> datetime | None:
    """Read a time from a job's context, if any."""
    try:
        return local(datetime.fromisoformat(str(text))) if text else None
    except ValueError:
        return None


def _status(row: Mapping[str, Any]) -> TaskResultStatus:
    match row["state"]:
        case "finished":
            return TaskResultStatus.SUCCESSFUL
        case "dead":
            return TaskResultStatus.FAILED
        case "inflight" if row["lease_expires_at"] is not None:
            return TaskResultStatus.RUNNING
    return TaskResultStatus.READY


def _errors(row: Mapping[str, Any]) -> Iterator[TaskError]:
    """Yield the recorded errors, oldest first, with those of earlier deaths."""
    for life in (*(row["history"] or ()), row):
        error, reason = life.get("last_error"), life.get("reason")
        for each in (*reversed(earlier_errors(error)), *([error] if error else [])):
            yield TaskError(
                exception_class_path=_path(each["type"]),
                traceback=each.get("traceback") or f"{each['type']}: {each.get('message', '')}",
            )
        if reason and (not error or reason not in ("failed", "gave up")):
            yield TaskError(
                exception_class_path=_CANCELLED if reason == "cancelled" else _DEAD,
                traceback=str(life.get("explanation") or reason),
            )


def _path(kind: str) -> str:
    # Older versions had a top-level package `workers`.
    kind = f"drain.{kind}" if kind.startswith("workers.errors.") else kind
    return kind if "." in kind else f"builtins.{kind}"
