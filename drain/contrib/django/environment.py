"""Environment of `manage.py` commands, from Django's settings.

Environment variables win over settings of the same name. The default database is that of the tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS

from drain.config import VARIABLES
from drain.contrib.django.connections import url
from drain.errors import ConfigError

MODULE = "drain.contrib.django.tasks"
_NAME = re.compile("DRAIN_[A-Z_]+")


def fill(environment: os._Environ[str] = os.environ) -> None:
    """Set missing environment variables from Django's settings."""
    for variable in filter(_NAME.fullmatch, dir(settings)):
        value = getattr(settings, variable)
        if value is not None and not environment.get(variable):
            environment[variable] = _text(value)
    database = VARIABLES["database_url"]
    if not environment.get(database):
        environment[database] = url(only_database())
    jobs = environment.get(VARIABLES["jobs"], "")
    if MODULE not in [name.strip() for name in jobs.split(",")]:
        environment[VARIABLES["jobs"]] = ",".join(filter(None, [MODULE, jobs]))


def databases() -> set[str]:
    """Return aliases of task databases; the default one without a `DrainBackend`."""
    tasks = getattr(settings, "TASKS", None) or {}
    own = {name: given for name, given in tasks.items() if _is_ours(given.get("BACKEND"))}
    return {(given.get("OPTIONS") or {}).get("database", DEFAULT_DB_ALIAS) for given in own.values()} or {
        DEFAULT_DB_ALIAS
    }


def only_database() -> str:
    """Return the task database's alias; ConfigError if there are several."""
    found = databases()
    if len(found) > 1:
        raise ConfigError(
            f"TASKS has backends of several databases, {', '.join(sorted(found))}: each needs its own programs; "
            "name one in DRAIN_DATABASE_URL"
        )
    return found.pop()


def _is_ours(backend: object) -> bool:
    from django.utils.module_loading import import_string

    from drain.contrib.django.backend import DrainBackend

    try:
        found = import_string(str(backend))
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, DrainBackend)


def _text(value: object) -> str:
    is_many = isinstance(value, Iterable) and not isinstance(value, str)
    return ",".join(map(str, value)) if is_many else str(value)  # type: ignore[call-overload]
