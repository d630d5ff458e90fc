"""Django: tasks that commit with the request's transaction, and the tables in migrations, commands and the admin.

    TASKS = {"default": {"BACKEND": "drain.contrib.django.DrainBackend"}}
    INSTALLED_APPS = [..., "drain.contrib.django"]

Nothing here is imported by `import drain`, and Django itself only when it is used.

    transaction   `transaction()`: what a job writes through Django's ORM commits with the job's finish
    job_transaction  the block itself, in a worker
    apps          the application `drain`, for INSTALLED_APPS
    backend       `DrainBackend`: tasks are staged in the transaction that is open
    options       options of a backend and of a task, checked
    framework     `django.tasks` of Django 6, or the package `django-tasks` for Django before 6
    task          `DrainTask`: a task with options of `@job`; registration of each task as a job
    running       one attempt at a task: context, signals, the returned value
    results       state and result of a task, from the row of its job
    tasks         module of jobs for workers: DRAIN_JOBS=drain.contrib.django.tasks
    connections   the psycopg connection and the URL of a database of Django's
    installation  the tables, made by a migration
    environment   settings of the programs, from those of Django
    management    `manage.py drain`, `manage.py drain_run` and `manage.py drain_work`
    migrations    `manage.py migrate` makes the tables
    models        the four tables, read only
    columns       what the admin shows of a job: its state, its error, and texts made visible
    admin         the four tables in the admin, with actions to retry and to cancel
"""

import importlib
from typing import TYPE_CHECKING, Any

from drain.contrib.django.transaction import transaction

if TYPE_CHECKING:
    from drain.contrib.django.backend import DrainBackend

# Name -> module that defines it.
_HOMES = {"DrainBackend": "drain.contrib.django.backend"}

__all__ = ["DrainBackend", "transaction"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name at its first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
