"""Virtual time for `drain.contrib.testing`, within a test's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import IS_BLOCKED, PARKED_AT, id_array


def _earlier(*columns: str) -> str:
    return ", ".join(f"{column} = {column} - %(by)s::interval" for column in columns)


# A blocked job stays blocked.
_SCHEDULED = f"scheduled_at = scheduled_at - CASE WHEN {IS_BLOCKED} THEN '0' ELSE %(by)s::interval END"
# Columns move together, so rows stay in their partitions.
_STAGED = f"{_earlier('staged_at', 'matured_at', 'expires_at', 'starts_at')}, {_SCHEDULED}"
_MOVED = _earlier(
    *("staged_at", "scheduled_at", "expires_at", "moved_at"),
    *("claimed_at", "lease_expires_at", "failed_at"),
)
# A waiting job stays so.
_IN_FLIGHT = f"""{_MOVED},
    next_run_at = next_run_at - CASE WHEN next_run_at = {PARKED_AT} THEN '0' ELSE %(by)s::interval END"""
_CRONS = _earlier("next_tick_at", "last_tick_at", "changed_at")
SHIFT = f"""
WITH staged AS (
    UPDATE staged_jobs SET {_STAGED}
), in_flight AS (
    UPDATE inflight_jobs SET {_IN_FLIGHT}
), waits AS (
    UPDATE job_waits SET {_earlier("began_at", "deadline")}
)
UPDATE crons SET {_CRONS}
"""
# Only this transaction's finished jobs, as there may be millions.
SHIFT_REST = f"""
WITH paused AS (
    UPDATE queue_pauses SET {_earlier("until", "paused_at")}
), kept AS (
    UPDATE idempotency_keys SET {_earlier("staged_at", "expires_at")}
)
UPDATE finished_jobs SET {_earlier("staged_at", "scheduled_at", "moved_at", "claimed_at", "finished_at")}
WHERE finished_xid = pg_current_xact_id()
"""
_SHIFT_STAGED = f"UPDATE staged_jobs SET {_SCHEDULED} WHERE id = ANY (%(ids)s::bigint[])"
_MAKE_DUE = """
UPDATE inflight_jobs SET next_run_at = clock_timestamp() WHERE id = %s AND next_run_at IS NOT NULL
"""
_CLOCK = "SELECT now(), clock_timestamp()"


def clock(connection: Connection) -> tuple[datetime, datetime]:
    """Return the transaction's start and the current time."""
    began, now = fetch_one(connection, _CLOCK)
    return began, now


def shift(connection: Connection, by: timedelta) -> None:
    """Make the times of unfinished jobs and schedules earlier."""
    connection.execute(SHIFT, {"by": by})


def shift_rest(connection: Connection, by: timedelta) -> None:
    """Shift pauses, idempotency keys, and jobs finished in this transaction."""
    connection.execute(SHIFT_REST, {"by": by})


def shift_staged(connection: Connection, ids: Sequence[int], by: timedelta) -> None:
    """Make staged jobs due earlier."""
    connection.execute(_SHIFT_STAGED, {"ids": id_array(ids), "by": by})


def make_due(connection: Connection, job_id: int) -> bool:
    """Make a job's next attempt due; False without one."""
    return connection.execute(_MAKE_DUE, (job_id,)).rowcount == 1


_STAGED_SINCE = "SELECT id FROM staged_jobs WHERE id > %(since)s AND tag = ANY (%(tags)s::text[])"
_HIGHEST_ID = "SELECT coalesce(max(id), 0) FROM staged_jobs"


def highest_id(connection: Connection) -> int:
    """Return the highest staged id, or 0."""
    (highest,) = fetch_one(connection, _HIGHEST_ID)
    return int(highest)


def staged_since(connection: Connection, since: int, ticks: Mapping[str, object]) -> list[int]:
    """Return the schedules' staged ids above `since`."""
    parameters = {"since": since, "tags": [f"cron:{name}" for name in ticks]}
    return [job_id for (job_id,) in connection.execute(_STAGED_SINCE, parameters)]
