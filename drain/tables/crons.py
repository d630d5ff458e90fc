"""Schedules; each tick stages one job, in the transaction that sets the next tick."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from psycopg.rows import dict_row

from drain.database.grants import DECLARED, SCHEDULED
from drain.database.postgres import Connection, fetch_one

_TYPES = {"job_args": "jsonb", "job_kwargs": "jsonb", "options": "jsonb", "declared": "boolean"}
_GIVEN = {column: _TYPES.get(column, "text") for column in SCHEDULED.split(", ") if column != "name"}
# Schedules declared by `@job` have no arguments.
_DECLARED = {column: _GIVEN[column] for column in DECLARED.split(", ") if column != "name"}


def _replace(columns: Iterable[str]) -> str:
    # Ticks of another line or zone are void.
    return f"""{", ".join(f"{column} = excluded.{column}" for column in columns)},
        error = NULL, changed_at = clock_timestamp(), next_tick_at = CASE
            WHEN (crons.cron, crons.timezone) = (excluded.cron, excluded.timezone) THEN crons.next_tick_at END"""


def _differs(columns: Iterable[str], other: str) -> str:
    ours, others = (", ".join(f"{row}.{column}" for column in columns) for row in ("crons", other))
    return f"({ours}) IS DISTINCT FROM ({others})"


# A pause stays.
PUT = f"""
INSERT INTO crons (name, {", ".join(_GIVEN)})
VALUES (%(name)s, {", ".join(f"CAST(%({column})s AS {kind})" for column, kind in _GIVEN.items())})
ON CONFLICT (name) DO UPDATE SET {_replace(_GIVEN)} WHERE {_differs(_GIVEN, "excluded")}
RETURNING name
"""
TAKE_AWAY = "DELETE FROM crons WHERE name = CAST(%(name)s AS text) RETURNING name"

# Unchanged schedules are not written, so processes starting together do not block; an application's stay.
_DECLARE = f"""
INSERT INTO crons ({DECLARED})
SELECT {DECLARED}
FROM jsonb_to_recordset(%s::jsonb) AS given (name text, {", ".join(map(" ".join, _DECLARED.items()))})
WHERE NOT EXISTS (SELECT FROM crons WHERE crons.name = given.name
    AND (NOT crons.declared OR NOT {_differs(_DECLARED, "given")}))
ORDER BY name
ON CONFLICT (name) DO UPDATE SET {_replace(_DECLARED)} WHERE crons.declared
RETURNING name
"""


def declare(connection: Connection, schedules: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write changed schedules of `@job`; return their names."""
    return [name for (name,) in connection.execute(_DECLARE, (json.dumps(list(schedules)),))]


class DueSchedule(NamedTuple):
    """Schedule with a due tick; `next_tick_at` is None until computed."""

    name: str
    cron: str
    timezone: str
    missed: str
    next_tick_at: datetime | None
    changed_at: datetime
    now: datetime


_SECONDS_TO_NEXT_TICK = """
SELECT coalesce(extract(epoch FROM next_tick_at - clock_timestamp())::float8, 0)
FROM crons WHERE NOT paused AND error IS NULL ORDER BY next_tick_at NULLS FIRST LIMIT 1
"""
# Skips schedules that another transaction is changing.
_READ_DUE = """
SELECT name, cron, timezone, missed, next_tick_at, changed_at, now() FROM crons
WHERE NOT paused AND error IS NULL AND (next_tick_at IS NULL OR next_tick_at <= now())
    AND (%(names)s::text[] IS NULL OR name = ANY (%(names)s))
ORDER BY next_tick_at NULLS FIRST LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""


def seconds_to_next_tick(connection: Connection) -> float | None:
    """Return the seconds until the next tick, if any."""
    row: tuple[float] | None = connection.execute(_SECONDS_TO_NEXT_TICK).fetchone()
    return None if row is None else row[0]


def read_due(connection: Connection, limit: int, names: Sequence[str] | None = None) -> list[DueSchedule]:
    """Read and lock schedules with a due or unknown tick."""
    parameters = {"limit": limit, "names": None if names is None else list(names)}
    return [
        DueSchedule._make(map(_in_utc, row)) for row in connection.execute(_READ_DUE, parameters, binary=True)
    ]


def _in_utc(value: Any) -> Any:
    # In one zone, datetimes compare by wall time, which repeats when summer time ends.
    return value.astimezone(UTC) if isinstance(value, datetime) else value


_TAG = "'cron:' || crons.name"
_VALUES = {
    "job_name": "job_name",
    "job_args": "job_args",
    "job_kwargs": "job_kwargs",
    "queue": "coalesce(options ->> 'queue', 'default')",
    "priority": "coalesce((options ->> 'priority')::integer, 0)",
    "scheduled_at": "tick.at + make_interval(secs => coalesce((options ->> 'quiet_seconds')::float8, 0))",
    "tag": _TAG,
    "max_attempts": "(options ->> 'max_attempts')::integer",
    "timeout_seconds": "(options ->> 'timeout_seconds')::integer",
    "context": """coalesce(options -> 'context', '{}')
        || pg_catalog.jsonb_build_object('cron', crons.name, 'tick', tick.at)""",
    "key": "options ->> 'key'",
    "unique_key": "options ->> 'unique_key'",
    "keep": "options ->> 'keep'",
    "quiet_seconds": "(options ->> 'quiet_seconds')::float8",
}
_STAGE = f"""
INSERT INTO staged_jobs ({", ".join(_VALUES)})
SELECT {", ".join(_VALUES.values())}
FROM unnest(%s::text[], %s::timestamptz[]) WITH ORDINALITY AS tick (name, at, position) JOIN crons USING (name)
ORDER BY position RETURNING id, tag
"""
_MOVE_ON = """
UPDATE crons SET next_tick_at = moved.next, last_tick_at = coalesce(moved.last, last_tick_at),
    last_job_id = coalesce(moved.job, last_job_id)
FROM unnest(%s::text[], %s::timestamptz[], %s::timestamptz[], %s::bigint[]) AS moved (name, next, last, job)
WHERE crons.name = moved.name
"""


class Ticks(NamedTuple):
    """Ticks to stage, and the one after them."""

    name: str
    ticks: Sequence[datetime]
    next: datetime


def stage(connection: Connection, schedules: Sequence[Ticks]) -> dict[str, int]:
    """Stage a job for each tick; return each schedule's last id.

    Call between `read_due` and `move_on` in one transaction.

    Raises:
        psycopg.DataError, psycopg.IntegrityError: A job cannot be staged.
    """
    pairs = [(each.name, tick) for each in schedules for tick in each.ticks]
    if not pairs:
        return {}
    return {tag.removeprefix("cron:"): job_id for job_id, tag in connection.execute(_STAGE, _columns(pairs))}


def move_on(connection: Connection, schedules: Sequence[Ticks], ids: Mapping[str, int]) -> None:
    """Set the next ticks, in the transaction of `stage`."""
    rows = [
        (each.name, each.next, each.ticks[-1] if each.ticks else None, ids.get(each.name))
        for each in schedules
    ]
    connection.execute(_MOVE_ON, _columns(rows))


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


_STAGE_NOW = f"""
INSERT INTO staged_jobs ({", ".join(_VALUES)})
SELECT {", ".join(_VALUES.values())} FROM (SELECT now()) AS tick (at), crons WHERE name = %s RETURNING id
"""


def stage_now(connection: Connection, name: str) -> int | None:
    """Stage an extra job of a schedule; return its id."""
    row: tuple[int] | None = connection.execute(_STAGE_NOW, (name,)).fetchone()
    return None if row is None else row[0]


# The leader waits for no transaction.
_UNLOCKED = "WHERE name IN (SELECT name FROM crons WHERE {} FOR UPDATE SKIP LOCKED)"


def refuse(connection: Connection, name: str, error: str) -> None:
    """Note why a schedule cannot stage; it stops until changed or retried."""
    connection.execute(f"UPDATE crons SET error = %s {_UNLOCKED.format('name = %s')}", (error, name))


def try_again(connection: Connection) -> None:
    """Clear errors: a new leader may know the zone or have rights."""
    connection.execute(f"UPDATE crons SET error = NULL {_UNLOCKED.format('error IS NOT NULL')}")


_PAUSE = "UPDATE crons SET paused = true WHERE name = ANY (%s) AND NOT paused RETURNING name"
_RESUME = """
UPDATE crons SET paused = false, next_tick_at = NULL, changed_at = clock_timestamp()
WHERE name = ANY (%s) AND paused RETURNING name
"""


def pause(connection: Connection, names: Sequence[str]) -> list[str]:
    """Pause schedules; return those newly paused."""
    return [name for (name,) in connection.execute(_PAUSE, (list(names),))]


def resume(connection: Connection, names: Sequence[str]) -> list[str]:
    """Resume schedules without missed ticks; return those resumed."""
    return [name for (name,) in connection.execute(_RESUME, (list(names),))]


def remove(connection: Connection, names: Sequence[str]) -> list[str]:
    """Delete schedules but not staged jobs; return those deleted."""
    statement = "DELETE FROM crons WHERE name = ANY (%s) RETURNING name"
    return [name for (name,) in connection.execute(statement, (list(names),))]


def all_schedules(connection: Connection) -> list[dict[str, Any]]:
    """Read all schedules."""
    with connection.cursor(row_factory=dict_row, binary=True) as cursor:
        return cursor.execute("SELECT * FROM crons ORDER BY name").fetchall()


_PAGE = "SELECT * FROM crons WHERE %(after)s::text IS NULL OR name > %(after)s ORDER BY name LIMIT %(limit)s"


def page(connection: Connection, limit: int, after: str | None = None) -> list[dict[str, Any]]:
    """Read the next page by name."""
    with connection.cursor(row_factory=dict_row, binary=True) as cursor:
        return cursor.execute(_PAGE, {"after": after, "limit": limit}).fetchall()


def one(connection: Connection, name: str) -> dict[str, Any] | None:
    """Read a schedule, or None."""
    with connection.cursor(row_factory=dict_row, binary=True) as cursor:
        return cursor.execute("SELECT * FROM crons WHERE name = %s", (name,)).fetchone()


_OVERDUE = """
SELECT name FROM crons
WHERE NOT paused AND error IS NULL AND coalesce(next_tick_at, changed_at) < now() - make_interval(secs => %s)
"""
_REFUSED = "SELECT name FROM crons WHERE NOT paused AND error IS NOT NULL"


def overdue(connection: Connection, seconds: float) -> set[str]:
    """Return schedules with an unstaged tick older than this."""
    return {name for (name,) in connection.execute(_OVERDUE, (seconds,))}


def refused(connection: Connection) -> set[str]:
    """Return schedules whose jobs cannot be staged."""
    return {name for (name,) in connection.execute(_REFUSED)}


def names(connection: Connection) -> list[str]:
    """List all schedules."""
    (found,) = fetch_one(
        connection, "SELECT coalesce(pg_catalog.array_agg(name ORDER BY name), '{}') FROM crons"
    )
    return list(found)
