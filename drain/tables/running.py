"""Running jobs of a queue with limits, and recent starts.

Jobs run while delivered or claimed; if cancelled, until the worker confirms or the lease expires (`cancelled_claims`).
The leader asks by primary key, so dead row versions cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables.cancellations import HAS_PLACE
from drain.tables.columns import DELIVERED, id_array
from drain.tables.keyed import Paused

# Payload: a queue.
CHANNEL = "ended_jobs"
# Commits that notify wait for each other, so this one, never flushed as it writes nothing, doesn't wait long.
NOTIFY_ENDS = f"""
SELECT set_config('lock_timeout', '100ms', true), pg_notify('{CHANNEL}'::text, queue)
FROM unnest(%s::text[]) AS queue WHERE current_setting('drain.notify', true) IS DISTINCT FROM 'off'
"""
_KEYS_OF_CANCELLED = f"SELECT coalesce(key, '') FROM cancelled_claims WHERE {HAS_PLACE}"
# Names only the id, so that only the primary key fits.
STILL_RUNNING = f"""
SELECT coalesce(pg_catalog.array_agg(id), '{{}}'), ARRAY ({_KEYS_OF_CANCELLED})
FROM (SELECT id, queue, next_run_at FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[]) OFFSET 0) AS job
WHERE queue = %(queue)s AND next_run_at IS NULL
"""
# One snapshot, so that a moving job appears exactly once.
IN_FLIGHT = f"""
SELECT id, key FROM inflight_jobs WHERE {DELIVERED} AND queue = %(queue)s
UNION ALL
SELECT id, key FROM inflight_jobs
WHERE lease_expires_at IS NOT NULL AND next_run_at IS NULL AND queue = %(queue)s
UNION ALL
SELECT NULL, key FROM cancelled_claims WHERE {HAS_PLACE}
"""
DUE_RETRIES = """
SELECT id, key FROM inflight_jobs
WHERE queue = %(queue)s AND next_run_at <= now() AND next_run_at IS NOT NULL
    AND coalesce(key, '') <> ALL (%(keys)s::text[]) AND job_name <> ALL (%(names)s::text[])
    AND coalesce(key || E'\\n' || job_name, '') <> ALL (%(pairs)s::text[])
ORDER BY next_run_at LIMIT %(limit)s
"""
FIRST_RETRIES = """
SELECT wanted.key, first.id, first.may_begin FROM pg_catalog.unnest(%(keys)s::text[]) AS wanted (key), LATERAL (
    SELECT id, next_run_at <= now() AND job_name <> ALL (%(names)s::text[])
        AND key || E'\\n' || job_name <> ALL (%(pairs)s::text[]) AS may_begin
    FROM inflight_jobs AS job
    WHERE queue = %(queue)s AND job.key = wanted.key AND job.key IS NOT NULL AND next_run_at IS NOT NULL
    ORDER BY id LIMIT 1) AS first
"""
# Tokens also count deferrals, cancellations and giving way.
CLAIMS_OF_DEAD = "greatest(attempts, fencing_token - (reason = 'cancelled')::integer)"
CLAIMS_OF_FINISHED = "greatest(attempts, fencing_token - (superseded_by IS NOT NULL)::integer)"
# All claims count as recent: better to underuse a rate than exceed it.
BEGUN = f"""
WITH ended AS (
    SELECT key, {CLAIMS_OF_FINISHED} AS claims, greatest(moved_at, claimed_at) AS begun_at, finished_at
    FROM finished_jobs
    WHERE queue = %(queue)s AND {CLAIMS_OF_FINISHED} > 0
        AND finished_at > now() - make_interval(secs => %(seconds)s::float8)
    ORDER BY finished_at DESC LIMIT %(limit)s
), begun AS (
    SELECT key, claims, begun_at FROM ended
    UNION ALL
    SELECT key, greatest(attempts, fencing_token), greatest(moved_at, claimed_at)
    FROM inflight_jobs WHERE queue = %(queue)s AND (claimed_at IS NOT NULL OR greatest(attempts, fencing_token) > 0)
    UNION ALL
    SELECT key, {CLAIMS_OF_DEAD}, died_at FROM dead_jobs WHERE queue = %(queue)s AND {CLAIMS_OF_DEAD} > 0
)
SELECT coalesce(key, ''), sum(least(greatest(claims, 1), 1000000))::bigint FROM begun
WHERE begun_at > now() - make_interval(secs => %(seconds)s::float8) GROUP BY key
UNION ALL
SELECT NULL, (extract(epoch FROM clock_timestamp() - max(since)) * 1000000)::bigint FROM (
    SELECT min(finished_at) AS since FROM ended HAVING count(*) = %(limit)s
    UNION ALL
    SELECT dropped_before::timestamp AT TIME ZONE 'UTC' FROM drain_state) AS bounds
"""
# From a delivery on, to skip dead rows.
UNCLAIMED = f"""
SELECT id, coalesce(key, ''), fencing_token, delivery FROM inflight_jobs
WHERE {DELIVERED} AND queue = %(queue)s AND delivery >= %(since)s
"""
# Dead jobs: at their end. Revived jobs: now.
LAST_CLAIMS = f"""
SELECT id, claims, extract(epoch FROM coalesce(at, now()))::float8 FROM (
    SELECT id, fencing_token AS claims, claimed_at AS at FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT id, {CLAIMS_OF_FINISHED}, claimed_at FROM finished_jobs
    WHERE id = ANY (%(ids)s::bigint[]) AND finished_at > now() - make_interval(secs => %(seconds)s::float8)
    UNION ALL
    SELECT id, {CLAIMS_OF_DEAD}, died_at FROM dead_jobs WHERE id = ANY (%(ids)s::bigint[])
    UNION ALL
    SELECT id, fencing_token, now() FROM staged_jobs WHERE id = ANY (%(ids)s::bigint[])) AS job
"""
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


class Unclaimed(NamedTuple):
    """Delivered, unclaimed job; its key may be ''."""

    key: str
    claims: int


class LastClaim(NamedTuple):
    """Number of claims, and Unix time of the last or the end."""

    number: int
    at: float


def still_running(connection: Connection, queue: str, ids: Iterable[int]) -> tuple[list[int], list[str]]:
    """Return jobs still running, and keys of cancelled ones still counted."""
    still, cancelled = fetch_one(connection, STILL_RUNNING, {"ids": id_array(ids), "queue": queue})
    return still, cancelled


def in_flight(connection: Connection, queue: str) -> list[tuple[int | None, str]]:
    """Return running jobs with key or ''; cancelled ones without id."""
    rows = connection.execute(IN_FLIGHT, {"queue": queue}, binary=True)
    return [(job_id, key or "") for job_id, key in rows]


def due_retries(
    connection: Connection,
    queue: str,
    limit: int,
    paused: Paused,
    leave_keys: Collection[str],
) -> list[tuple[int, str]]:
    """Return due retries, earliest first, with key or ''."""
    parameters = {"queue": queue, "limit": limit, "keys": list(leave_keys), **paused.parameters()}
    rows = connection.execute(DUE_RETRIES, parameters, binary=True).fetchall()
    return [(job_id, key or "") for job_id, key in rows]


def first_retries(
    connection: Connection, queue: str, keys: Collection[str], paused: Paused
) -> dict[str, tuple[int, bool]]:
    """Return each key's lowest waiting retry, and whether it may begin."""
    parameters = {"queue": queue, "keys": list(keys), **paused.parameters()}
    rows = connection.execute(FIRST_RETRIES, parameters, binary=True).fetchall()
    return {key: (job_id, may_begin) for key, job_id, may_begin in rows}


def begun(connection: Connection, queue: str, seconds: float, limit: int) -> tuple[dict[str, int], float]:
    """Count recent starts by key; return also the seconds covered.

    Only the latest finished jobs are read, and retention drops some.
    """
    parameters = {"queue": queue, "seconds": seconds, "limit": limit}
    counts: dict[str | None, int] = dict(connection.execute(BEGUN, parameters).fetchall())
    microseconds = counts.pop(None, None)
    covered = seconds if microseconds is None else min(seconds, microseconds / 1e6)
    return {key: count for key, count in counts.items() if key is not None}, covered


def unclaimed(connection: Connection, queue: str, since: int) -> tuple[dict[int, Unclaimed], int]:
    """Return unclaimed jobs by id, and the next `since`."""
    rows = connection.execute(UNCLAIMED, {"queue": queue, "since": since}, binary=True).fetchall()
    found = {job_id: Unclaimed(key, claims) for job_id, key, claims, _ in rows}
    return found, min((delivery for *_, delivery in rows), default=since)


def last_claims(connection: Connection, ids: Collection[int], seconds: float) -> dict[int, LastClaim]:
    """Return last claims, of jobs finished within `seconds`."""
    rows = connection.execute(LAST_CLAIMS, {"ids": id_array(ids), "seconds": seconds})
    return {job_id: LastClaim(number, at) for job_id, number, at in rows}


def clock(connection: Connection) -> float:
    """Return the database's clock, in Unix seconds."""
    (seconds,) = fetch_one(connection, _CLOCK)
    return float(seconds)


def notify_ends(connection: Connection, queues: Collection[str]) -> None:
    """Notify the leader that jobs of these queues have ended, in autocommit mode; a hint, since it looks anyway."""
    connection.execute(NOTIFY_ENDS, (list(queues),))
