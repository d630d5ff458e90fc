"""Schedules: the leader stages one job per tick, with the tag `cron:NAME`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from drain.errors import StageError
from drain.jobs import executors, registry
from drain.jobs.executors import Connectable
from drain.jobs.keys import KeyOption
from drain.jobs.options import name_and_options
from drain.jobs.rows import Job, row
from drain.jobs.timetable import LONGEST_NAME, TimetableError, check_schedule
from drain.tables import crons

# Columns of `crons`; others become its options.
_OF_JOB = ("job_name", "job_args", "job_kwargs")
# As in the schema.
_LONGEST_JOB_NAME = 255


def schedule(
    connection: Connectable,
    name: str,
    job: Job,
    *,
    cron: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timezone: str = "UTC",
    missed: str = "last",
    queue: str | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    timeout_seconds: int | None = None,
    context: Mapping[str, Any] | None = None,
    key: KeyOption | None = None,
    unique_key: KeyOption | None = None,
    keep: Literal["first", "last"] | None = None,
    quiet: timedelta | None = None,
) -> None:
    """Schedule a job in the open transaction: each tick of the cron line stages one.

    Replaces a schedule of this name; an identical one is unchanged, and a paused one stays paused. The first tick is
    the next one by the database's clock. One round trip.

    Args:
        connection: As for `drain.stage`; needs the role `operator` (see `drain roles`).
        name: Up to 250 characters.
        job: Job name or function.
        cron: Five fields as in crontab(5), optionally after seconds.
        args: Positional arguments of each job.
        kwargs: Keyword arguments of each job.
        timezone: Time zone of the cron line, such as "Europe/Berlin".
        missed: Which ticks to stage that passed without a leader: "last", "all" or "none".
        queue: As for `drain.stage`, like the following options.
        priority: Lower runs first.
        max_attempts: Attempts before a job is dead.
        timeout_seconds: Timeout per attempt.
        context: Trace and log context; `cron` (name) and `tick` (time) are added.
        key: Customer, tenant or resource.
        unique_key: Only one job of this name waits per unique key, from ticks or staged.
        keep: Which one.
        quiet: Time after the tick without another job of the unique key.

    Raises:
        StageError: Invalid schedule; nothing was sent.
    """
    _check_name(name)
    _check_job(job)
    try:
        check_schedule(cron, timezone, missed)
    except TimetableError as error:
        raise StageError(str(error)) from None
    options = row(
        *(job, args, kwargs),
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        timeout_seconds=timeout_seconds,
        context=context,
        key=key,
        unique_key=unique_key,
        keep=keep,
        quiet=quiet,
    )
    parameters: dict[str, Any] = {"name": str.__str__(name), "cron": cron, "timezone": timezone}
    parameters |= {"missed": missed, "declared": False}
    parameters |= {column: options.pop(column) for column in _OF_JOB}
    executors.execute(connection, crons.PUT, parameters | {"options": _options(options)})


def unschedule(connection: Connectable, name: str) -> bool:
    """Delete a schedule in the open transaction; staged jobs stay.

    Args:
        connection: As for `schedule`.
        name: Name of the schedule.

    Returns:
        Whether it existed.

    Raises:
        StageError: Invalid name.
    """
    _check_name(name)
    return bool(executors.execute(connection, crons.TAKE_AWAY, {"name": str.__str__(name)}))


def declared() -> list[dict[str, Any]]:
    """Schedules of `@job(cron=...)`, as columns of `crons`."""
    jobs = filter(None, map(registry.find, registry.names()))
    return [_declared(job) for job in jobs if job.job_options.cron is not None]


def _declared(job: registry.Job[..., Any]) -> dict[str, Any]:
    own = job.job_options
    options = {column: value for column, value in row(job, (), None).items() if column not in _OF_JOB}
    when = {"cron": own.cron, "timezone": own.timezone, "missed": own.missed}
    return {"name": job.job_name, "job_name": job.job_name, **when, "options": options, "declared": True}


def _check_name(name: str) -> None:
    # PostgreSQL would refuse NUL and surrogates, but abort the transaction.
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= LONGEST_NAME
        or not (name.isprintable() and name.strip())
    ):
        raise StageError(
            f"a schedule name must have 1 to {LONGEST_NAME} printable characters, not {name!r:.100}"
        )


def _check_job(job: Job) -> None:
    name, registered = name_and_options(job)
    if not 1 <= len(name) <= _LONGEST_JOB_NAME:
        raise StageError(f"a job name must have 1 to {_LONGEST_JOB_NAME} characters")
    if registered is not None and registered.after is not None:
        raise StageError(
            f"{name} is registered with after, and jobs of a schedule cannot wait for others: "
            "schedule a job that stages it"
        )


def _options(options: Mapping[str, Any]) -> str:
    # `staged_jobs` would refuse these.
    if options.get("max_attempts", 0) < 0 or options.get("timeout_seconds", 1) <= 0:
        raise StageError("max_attempts must not be negative, and timeout_seconds must be above 0")
    # JSON already.
    context = {name: json.loads(text) for name, text in options.items() if name == "context"}
    return json.dumps({**options, **context})
