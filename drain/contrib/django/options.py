"""Options of backends and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections as databases

from drain.config import QUEUE_CHARACTERS, QUEUE_NAME
from drain.contrib.django.framework import InvalidTaskBackend
from drain.jobs.options import JobOptions

DATABASE = "database"
# Options of `@job` allowed in OPTIONS of a backend and in `@task(...)`.
OF_JOBS = (
    "max_attempts",
    "timeout_seconds",
    "retry_base_seconds",
    "retry_cap_seconds",
    "retry_delays",
    "retry_on",
    "give_up_on",
    "lease_seconds",
    "heartbeat_seconds",
    "max_execute_seconds",
    "isolated",
)


def read(alias: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a backend's database alias and options of `@job`."""
    place = f"TASKS[{alias!r}]"
    for queue in params.get("QUEUES", ()):
        if not isinstance(queue, str) or not QUEUE_NAME.fullmatch(queue):
            raise InvalidTaskBackend(
                f"{place}['QUEUES']: {queue!r} is not a queue name: {QUEUE_CHARACTERS}, at most 100 of them"
            )
    given = params.get("OPTIONS") or {}
    if not isinstance(given, Mapping):
        raise InvalidTaskBackend(f"{place}['OPTIONS'] must be a dict, not {given!r:.100}")
    for name in given:
        if name != DATABASE and name not in OF_JOBS:
            raise InvalidTaskBackend(f"{place}['OPTIONS'] has no option {name!r}; {_hint(str(name))}")
    database = given.get(DATABASE, DEFAULT_DB_ALIAS)
    if database not in databases.settings:
        known = ", ".join(databases.settings)
        raise InvalidTaskBackend(
            f"{place}['OPTIONS']: DATABASES has no database {database!r}; there are: {known}"
        )
    options = {name: value for name, value in given.items() if name != DATABASE}
    try:
        JobOptions(**options)
    except ValueError as error:
        raise InvalidTaskBackend(f"{place}['OPTIONS']: {error}") from None
    return str(database), options


def _hint(name: str) -> str:
    known = (DATABASE, *OF_JOBS)
    similar = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {similar[0]!r}? " if similar else ""
    return f"{hint}There are: {', '.join(known)}"
