"""Django tasks that commit with the request, and the tables in migrations, commands and the admin.

    TASKS = {"default": {"BACKEND": "drain.contrib.django.DrainBackend"}}
    INSTALLED_APPS = [..., "drain.contrib.django"]

`import drain` imports none of this, and Django only on use.

    transaction   `transaction()` and `step_transaction()`: ORM writes commit with the job's finish or a step
    job_transaction  its implementation in a worker
    apps          application for INSTALLED_APPS
    backend       `DrainBackend`: stages tasks
    options       options of backends and tasks
    framework     `django.tasks`, or the package `django-tasks`
    task          `DrainTask`, registered as a job
    running       one attempt
    results       state and result of a task
    tasks         DRAIN_JOBS=drain.contrib.django.tasks
    connections   connection and URL of a database
    installation  installs the tables
    environment   programs' settings from Django's
    management    `manage.py drain`, `drain_run` and `drain_work`
    migrations    one per schema version
    models        the four tables, read-only
    columns       admin columns
    admin         the tables, with retry and cancel
"""

import importlib
from typing import TYPE_CHECKING, Any

from drain.contrib.django.transaction import step_transaction, transaction

if TYPE_CHECKING:
    from drain.contrib.django.backend import DrainBackend

_HOMES = {"DrainBackend": "drain.contrib.django.backend"}

__all__ = ["DrainBackend", "step_transaction", "transaction"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
