"""Django: tasks that commit with the request, and the tables in migrations, commands and the admin.

    TASKS = {"default": {"BACKEND": "drain.contrib.django.DrainBackend"}}
    INSTALLED_APPS = [..., "drain.contrib.django"]

`import drain` imports none of this; Django itself is imported on first use.

    transaction   `transaction()`: ORM writes commit with the job's finish
    job_transaction  the block itself, in a worker
    apps          the application `drain`, for INSTALLED_APPS
    backend       `DrainBackend`: stages tasks in the open transaction
    options       options of backends and tasks
    framework     `django.tasks` of Django 6, or the package `django-tasks`
    task          `DrainTask`: a task with options of `@job`; registration as a job
    running       one attempt: context, signals, returned value
    results       state and result of a task, from its job's row
    tasks         job module for workers: DRAIN_JOBS=drain.contrib.django.tasks
    connections   psycopg connection and URL of a Django database
    installation  installs the tables in a migration
    environment   settings of the programs, from Django's
    management    `manage.py drain`, `manage.py drain_run` and `manage.py drain_work`
    migrations    `manage.py migrate` installs the tables
    models        the four tables, read-only
    columns       admin columns: state, error, and sanitized text
    admin         the four tables in the admin, with retry and cancel
"""

import importlib
from typing import TYPE_CHECKING, Any

from drain.contrib.django.transaction import transaction

if TYPE_CHECKING:
    from drain.contrib.django.backend import DrainBackend

# Name -> defining module.
_HOMES = {"DrainBackend": "drain.contrib.django.backend"}

__all__ = ["DrainBackend", "transaction"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
