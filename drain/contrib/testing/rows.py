"""Waiting jobs, as a test sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from psycopg.rows import dict_row

from drain.database.postgres import Connection
from drain.formatting import count
from drain.jobs import values
from drain.jobs.options import RegisteredJob, name_and_options
from drain.tables.columns import DELIVERED, IS_BLOCKED, MARKER, PARKED

Job = str | Callable[..., Any] | RegisteredJob

# Jobs listed by a failure, and characters of each one's arguments.
_MOST_LISTED = 20
_LONGEST_ARGUMENTS = 200


@dataclass(frozen=True, slots=True)
class StagedJob:
    """Job that waits, or runs.

    Attributes:
        args, kwargs: Arguments from JSON: a tuple is a list.
        state: "waiting" if due, "scheduled" for later, "blocked" by other jobs, "retrying" between attempts, "parked"
            by an event or a sleep, "running" in the job itself.
        run_at: Earliest time to run, if nothing blocks it.
        last_error: Type, message and traceback of the last failure, if any.
    """

    id: int
    job_name: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    state: str
    run_at: datetime
    priority: int = 0
    expires_at: datetime | None = None
    tag: str | None = None
    key: str | None = None
    unique_key: str | None = None
    max_attempts: int | None = None
    context: dict[str, Any] | None = None
    attempts: int = 0
    last_error: dict[str, Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        keys = f", key {self.key}" if self.key is not None else ""
        when = (
            ""
            if self.state in ("waiting", "blocked", "parked")
            else f" until {self.run_at:%Y-%m-%d %H:%M:%S %Z}"
        )
        call = f"{self.job_name}({_call(self.args, self.kwargs)})"
        return f"job {self.id}: {call}, queue {self.queue}{keys}, {self.state}{when}"


def _call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    words = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    text = ", ".join(words)
    return text if len(text) <= _LONGEST_ARGUMENTS else f"{text[:_LONGEST_ARGUMENTS]}…"


_READ_STAGED = f"""
SELECT *, CASE WHEN {IS_BLOCKED} THEN 'blocked' WHEN scheduled_at > clock_timestamp() THEN 'scheduled'
    ELSE 'waiting' END AS state
FROM staged_jobs WHERE job_name <> '{MARKER}'
"""
_READ_IN_FLIGHT = f"""
SELECT *, CASE WHEN lease_expires_at IS NOT NULL THEN 'running' WHEN next_run_at IS NULL THEN 'waiting'
    WHEN {PARKED} THEN 'parked' ELSE 'retrying' END AS state
FROM inflight_jobs
"""


def read(connection: Connection) -> list[StagedJob]:
    """Read staged and in-flight jobs, by id."""
    with connection.cursor(row_factory=dict_row) as cursor:
        found = [*cursor.execute(_READ_STAGED), *cursor.execute(_READ_IN_FLIGHT)]
    return sorted(map(_job_of, found), key=lambda job: job.id)


def _job_of(row: Mapping[str, Any]) -> StagedJob:
    known = {each.name: row[each.name] for each in fields(StagedJob) if each.name in row}
    run_at = row.get("next_run_at") or row["scheduled_at"]
    if row["state"] == "blocked":
        run_at = row["starts_at"] or row["staged_at"]
    return StagedJob(args=row["job_args"], kwargs=row["job_kwargs"], run_at=run_at, **known)


_DELIVERED = f"SELECT id, delivery, job_name FROM inflight_jobs WHERE {DELIVERED} ORDER BY delivery"
_ENDED = """
SELECT id, job_name, 'dead', reason, explanation FROM dead_jobs WHERE id = ANY (%(ids)s)
UNION ALL
SELECT id, job_name, CASE WHEN superseded_by IS NULL THEN 'finished' ELSE 'superseded' END, NULL,
    'it gave way to job ' || superseded_by
FROM finished_jobs WHERE id = ANY (%(ids)s)
ORDER BY id
"""


def delivered(connection: Connection) -> list[tuple[int, int, str]]:
    """Read id, delivery number and name of claimable jobs."""
    return connection.execute(_DELIVERED).fetchall()


def ended(connection: Connection, ids: Sequence[int]) -> list[tuple[int, str, str, str | None, str | None]]:
    """Read id, name, state, reason and explanation of ended jobs."""
    return connection.execute(_ENDED, {"ids": list(ids)}).fetchall()


class Wanted:
    """Condition on jobs: all that is given must match.

    Args:
        columns: Other attributes of `StagedJob`.
    """

    def __init__(
        self,
        job: Job | None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **columns: object,
    ) -> None:
        # A Django task's job has its dotted path as name.
        job = getattr(job, "module_path", job)
        self.name = None if job is None else name_and_options(job)[0]
        given_args, given_kwargs = map(json.loads, values.as_arguments(args or (), kwargs or {}))
        self._args = None if args is None else given_args
        self._kwargs = None if kwargs is None else given_kwargs
        self._columns = {name: value for name, value in columns.items() if value is not None}

    def __call__(self, row: StagedJob) -> bool:
        """Return True if the job matches."""
        return (
            self.name in (None, row.job_name)
            and self._args in (None, row.args)
            and self._kwargs in (None, row.kwargs)
            and all(getattr(row, name) == value for name, value in self._columns.items())
        )

    def __str__(self) -> str:
        words = [self.name or "job"]
        if self._args is not None:
            words.append(f"args={self._args!r}")
        if self._kwargs is not None:
            words.append(f"kwargs={self._kwargs!r}")
        words += [f"{name}={value!r}" for name, value in self._columns.items()]
        return " with ".join([words[0], ", ".join(words[1:])]) if words[1:] else words[0]


def listed(rows: Sequence[StagedJob]) -> str:
    """List jobs for a failure."""
    if not rows:
        return "nothing is staged"
    lines = [f"{count(len(rows), 'job')} {'is' if len(rows) == 1 else 'are'} staged:"]
    lines += [f"  {row}" for row in rows[:_MOST_LISTED]]
    if len(rows) > _MOST_LISTED:
        lines.append(f"  … and {len(rows) - _MOST_LISTED} more")
    return "\n".join(lines)
