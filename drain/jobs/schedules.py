"""Schedules: an application writes them in its own transaction, and `@job(cron=...)` declares them in the code.

The leader stages one job at each tick, under the tick's time and the tag `cron:NAME`.
"""

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

# Columns of a row that are columns of a schedule too; the others are options in its JSON.
_OF_JOB = ("job_name", "job_args", "job_kwargs")
# Upper bound of the characters of the name of a job, as in the schema.
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
    """Schedule a job in the transaction that is open on `connection`: one is staged at each tick of the cron line.

    A schedule of this name is replaced. Nothing changes if it is as given already, and a paused one stays paused. The
    first tick is the next one after this statement, by the database's clock. One round trip.

    Args:
        connection: As for `drain.stage`. It needs the rights of the role `operator`: see `drain roles`.
        name: Name of the schedule, of up to 250 characters.
        job: The job's name, or the function itself, as for `drain.stage`.
        cron: Minute, hour, day of the month, month, day of the week, as in crontab(5); seconds may come before them.
        args: Positional arguments of each job.
        kwargs: Keyword arguments of each job.
        timezone: Time zone in which the line is read, such as "Europe/Berlin".
        missed: "last", "all" or "none" of the ticks is staged that passed while there was no leader.
        queue: As for `drain.stage`, and so are the options that follow.
        priority: Lower runs first.
        max_attempts: Attempts before a job is dead.
        timeout_seconds: Timeout of one attempt.
        context: Trace and log context; each job has `cron` and `tick` in it, the name and the time of its tick.
        key: Customer, tenant or resource of each job.
        unique_key: Text of which one job of this name alone waits: that of an earlier tick, or one that was staged.
        keep: Which one stands.
        quiet: Time for which no other job with the unique key must have come; it begins with the tick.

    Raises:
        StageError: The schedule cannot be used as given, and nothing was sent.
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
    """Delete a schedule in the transaction that is open on `connection`; jobs that are staged stay.

    Args:
        connection: As for `schedule`.
        name: Name of the schedule.

    Returns:
        Whether there was one.

    Raises:
        StageError: The name cannot be one of a schedule.
    """
    _check_name(name)
    return bool(executors.execute(connection, crons.TAKE_AWAY, {"name": str.__str__(name)}))


def declared() -> list[dict[str, Any]]:
    """Collect the schedules that registered jobs declare, as columns of `crons`."""
    jobs = filter(None, map(registry.find, registry.names()))
    return [_declared(job) for job in jobs if job.job_options.cron is not None]


def _declared(job: registry.Job[..., Any]) -> dict[str, Any]:
    own = job.job_options
    options = {column: value for column, value in row(job, (), None).items() if column not in _OF_JOB}
    when = {"cron": own.cron, "timezone": own.timezone, "missed": own.missed}
    return {"name": job.job_name, "job_name": job.job_name, **when, "options": options, "declared": True}


def _check_name(name: str) -> None:
    # PostgreSQL would refuse a NUL or half a character too, and would abort the application's transaction.
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= LONGEST_NAME
        or not (name.isprintable() and name.strip())
    ):
        raise StageError(
            f"the name of a schedule is a text of 1 to {LONGEST_NAME} printable characters, not {name!r:.100}"
        )


def _check_job(job: Job) -> None:
    if not 1 <= len(name_and_options(job)[0]) <= _LONGEST_JOB_NAME:
        raise StageError(f"the name of a job has 1 to {_LONGEST_JOB_NAME} characters")


def _options(options: Mapping[str, Any]) -> str:
    """Write the options of the staged rows as JSON; those that `staged_jobs` would refuse are refused here.

    Raises:
        StageError: The leader could not stage a job with them.
    """
    if options.get("max_attempts", 0) < 0 or options.get("timeout_seconds", 1) <= 0:
        raise StageError("max_attempts must not be negative, and timeout_seconds must be above 0")
    # It is JSON already, as everything that `stage` sends.
    context = {name: json.loads(text) for name, text in options.items() if name == "context"}
    return json.dumps({**options, **context})
