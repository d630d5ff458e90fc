"""The installed task framework: `django.tasks` of Django 6, or the package `django-tasks`.

All other modules import from here.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from drain.errors import ConfigError

if find_spec("django.tasks") is not None:
    from django.tasks import signals, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import (
        TASK_MAX_PRIORITY,
        TASK_MIN_PRIORITY,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
    )
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.utils.json import normalize_json
elif find_spec("django_tasks") is not None:
    from django_tasks import signals, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import (
        TASK_MAX_PRIORITY,
        TASK_MIN_PRIORITY,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
    )
    from django_tasks.exceptions import (
        InvalidTaskBackendError as InvalidTaskBackend,
        InvalidTaskError as InvalidTask,
        TaskResultDoesNotExist,
    )
    from django_tasks.utils import normalize_json
else:
    raise ConfigError("tasks need Django 6, or before it the package django-tasks: pip install django-tasks")

__all__ = [
    "TASK_MAX_PRIORITY",
    "TASK_MIN_PRIORITY",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "send",
    "signals",
    "task_backends",
]


def send(signal: Any, sender: type, task_result: TaskResult) -> None:
    """Send a signal; receivers' exceptions are only logged."""
    signal.send_robust(sender, task_result=task_result)
