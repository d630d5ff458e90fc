"""Running jobs of a queue with limits: which of those that were admitted still run, and what has begun lately.

A job runs while its row of `inflight_jobs` is delivered or claimed. Only the leader lets rows run, so it remembers
their ids, and asks by primary key which of them still do: the cost does not depend on dead row versions. A job that was
cancelled while a worker had it runs until the worker has confirmed its end, or the lease is over (`cancelled_claims`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables.cancellations import HAS_PLACE
from drain.tables.columns import DELIVERED, id_array
from drain.tables.keyed import Paused

_KEYS_OF_CANCELLED = f"SELECT coalesce(key, '') FROM cancelled_claims WHERE {HAS_PLACE}"
# The condition names no column but the id, so that no index other than the primary key fits.
STILL_RUNNING = f"""
SELECT coalesce(pg_catalog.array_agg(id), '{{}}'), ARRAY ({_KEYS_OF_CANCELLED})
FROM (SELECT id, queue, next_run_at FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[]) OFFSET 0) AS job
WHERE queue = %(queue)s AND next_run_at IS NULL
"""
# One scan of each index, in one snapshot: a job that moves from one state to the next is in one of them.
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
# The job with the lowest id of each key that waits for its next attempt, and whether it may begin: it is due, and not
# paused.
FIRST_RETRIES = """
SELECT wanted.key, first.id, first.may_begin FROM pg_catalog.unnest(%(keys)s::text[]) AS wanted (key), LATERAL (
    SELECT id, next_run_at <= now() AND job_name <> ALL (%(names)s::text[])
        AND key || E'\\n' || job_name <> ALL (%(pairs)s::text[]) AS may_begin
    FROM inflight_jobs AS job
    WHERE queue = %(queue)s AND job.key = wanted.key AND job.key IS NOT NULL AND next_run_at IS NOT NULL
    ORDER BY id LIMIT 1) AS first
"""
# Claims of a job that has ended: its token also counts deferred attempts, and grows as it is cancelled or gives way.
CLAIMS_OF_DEAD = "greatest(attempts, fencing_token - (reason = 'cancelled')::integer)"
CLAIMS_OF_FINISHED = "greatest(attempts, fencing_token - (superseded_by IS NOT NULL)::integer)"
# Attempts that began within the last seconds. Of a job with several claims only the last one's time is known, and all
# count. A rate that is not used up is better than one that is exceeded.
BEGUN = f"""
WITH ended AS (
    SELECT key, {CLAIMS_OF_FINISHED} AS claims, greatest(moved_at, claimed_at) AS begun_at, finished_at
    FROM finished_jobs
    WHERE queue = %(queue)s AND (superseded_by IS NULL OR {CLAIMS_OF_FINISHED} > 0)
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
# Jobs that no worker has claimed yet, from a delivery on: dead rows of earlier ones are not stepped over.
UNCLAIMED = f"""
SELECT id, coalesce(key, ''), fencing_token, delivery FROM inflight_jobs
WHERE {DELIVERED} AND queue = %(queue)s AND delivery >= %(since)s
"""
# Claims of jobs, and the time of the last one. Of a dead one only its end is known, and of one that was revived that it
# has begun.
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
    """Delivered job that no worker has claimed.

    Attributes:
        key: Its key, or ''.
        claims: Number of the claims before that delivery.
    """

    key: str
    claims: int


class LastClaim(NamedTuple):
    """Last claim of a job.

    Attributes:
        number: How many claims there were.
        at: Time of the last one, in seconds since 1970; if only its end is known, of that.
    """

    number: int
    at: float


def still_running(connection: Connection, queue: str, ids: Iterable[int]) -> tuple[list[int], list[str]]:
    """Find the jobs among these that run.

    The others have ended, wait to be tried again, or have been moved to another queue while they waited.

    Returns:
        Ids; and, as of the same snapshot, the keys of the cancelled jobs of the queue that keep a place, '' for none.
    """
    still, cancelled = fetch_one(connection, STILL_RUNNING, {"ids": id_array(ids), "queue": queue})
    return still, cancelled


def in_flight(connection: Connection, queue: str) -> list[tuple[int | None, str]]:
    """List the jobs of a queue that run, each with its key or ''; a cancelled job that keeps its place has no id."""
    rows = connection.execute(IN_FLIGHT, {"queue": queue}, binary=True)
    return [(job_id, key or "") for job_id, key in rows]


def due_retries(
    connection: Connection,
    queue: str,
    limit: int,
    paused: Paused,
    leave_keys: Collection[str],
) -> list[tuple[int, str]]:
    """Find up to `limit` jobs of a queue whose next attempt is due, the earliest first, each with its key or ''."""
    parameters = {"queue": queue, "limit": limit, "keys": list(leave_keys), **paused.parameters()}
    rows = connection.execute(DUE_RETRIES, parameters, binary=True).fetchall()
    return [(job_id, key or "") for job_id, key in rows]


def first_retries(
    connection: Connection, queue: str, keys: Collection[str], paused: Paused
) -> dict[str, tuple[int, bool]]:
    """Find the job with the lowest id of each key that waits for its next attempt, and whether it may begin now."""
    parameters = {"queue": queue, "keys": list(keys), **paused.parameters()}
    rows = connection.execute(FIRST_RETRIES, parameters, binary=True).fetchall()
    return {key: (job_id, may_begin) for key, job_id, may_begin in rows}


def begun(connection: Connection, queue: str, seconds: float, limit: int) -> tuple[dict[str, int], float]:
    """Count the attempts of each key of a queue that began within these last seconds; '' is that of jobs without a key.

    Only so many of the jobs that have finished are read, the latest ones; and retention may have dropped earlier ones.

    Returns:
        Counts by key, and the seconds that they cover.
    """
    parameters = {"queue": queue, "seconds": seconds, "limit": limit}
    counts: dict[str | None, int] = dict(connection.execute(BEGUN, parameters).fetchall())
    microseconds = counts.pop(None, None)
    covered = seconds if microseconds is None else min(seconds, microseconds / 1e6)
    return {key: count for key, count in counts.items() if key is not None}, covered


def unclaimed(connection: Connection, queue: str, since: int) -> tuple[dict[int, Unclaimed], int]:
    """Find the delivered jobs of a queue that no worker has claimed.

    Args:
        connection: The leader's.
        queue: Name of the queue.
        since: First delivery that is looked at: the result of the look before, or 0.

    Returns:
        Jobs by id, and the first delivery to look at next time.
    """
    rows = connection.execute(UNCLAIMED, {"queue": queue, "since": since}, binary=True).fetchall()
    found = {job_id: Unclaimed(key, claims) for job_id, key, claims, _ in rows}
    return found, min((delivery for *_, delivery in rows), default=since)


def last_claims(connection: Connection, ids: Collection[int], seconds: float) -> dict[int, LastClaim]:
    """Find the last claims of jobs, without those that are in no table.

    Args:
        connection: The leader's.
        ids: The jobs.
        seconds: Time within which those of them have finished that are found.
    """
    rows = connection.execute(LAST_CLAIMS, {"ids": id_array(ids), "seconds": seconds})
    return {job_id: LastClaim(number, at) for job_id, number, at in rows}


def clock(connection: Connection) -> float:
    """Return the time by the database's clock, in seconds since 1970."""
    (seconds,) = fetch_one(connection, _CLOCK)
    return float(seconds)
