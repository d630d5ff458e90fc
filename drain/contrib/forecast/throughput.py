"""Pace of queues: what waits in each, which jobs have finished lately, and how many came; all of it bounded.

Each statement reads the latest or the first rows of an index, up to a bound, in a session that prefers indexes.
"""

from __future__ import annotations

from typing import NamedTuple

from drain.database.postgres import Connection
from drain.tables.columns import DELIVERED, DUE, IS_CLAIMED, LANE_KIND, LANE_QUEUE

# Upper bound of the finished jobs of a queue that are read, the latest ones.
MOST_FINISHED = 5_000
# Upper bound of the staged jobs of a queue that are counted.
MOST_STAGED = 5_000_000
# Upper bound of the other rows of a queue that one question reads.
MOST = 10_000
# Jobs of one transaction from which they count as a bulk run, and not as jobs that come from day to day.
BULK = 100
_OF_QUEUE = f"""
{DUE} AND {LANE_KIND} = ANY ('{{0,1,2,3}}'::integer[]) AND {LANE_QUEUE} = %(queue)s
"""
_FINISHED = f"""
SELECT queue, job_name, coalesce(finished_by, ''), date_part('epoch', claimed_at), date_part('epoch', finished_at),
    date_part('epoch', moved_at),
    date_part('epoch', CASE WHEN attempts > 1 THEN moved_at ELSE greatest(staged_at, scheduled_at) END)
FROM finished_jobs
WHERE queue = %(queue)s AND finished_at > now() - make_interval(secs => %(seconds)s::float8)
    AND superseded_by IS NULL
ORDER BY finished_at DESC LIMIT {MOST_FINISHED}
"""
_DUE = f"""
SELECT job_name, patient, count(*) FROM (
    SELECT job_name, priority > 0 AS patient FROM staged_jobs_ready WHERE {_OF_QUEUE} LIMIT {MOST_STAGED}) AS waiting
GROUP BY job_name, patient ORDER BY job_name, patient
"""
_SCHEDULED = f"""
SELECT job_name, date_part('epoch', scheduled_at - now()) FROM (
    SELECT job_name, scheduled_at FROM staged_jobs_scheduled WHERE queue = %(queue)s
    ORDER BY scheduled_at LIMIT {MOST}) AS first
"""
_DELIVERED = f"""
SELECT job_name, count(*) FROM (
    SELECT job_name FROM inflight_jobs WHERE {DELIVERED} AND queue = %(queue)s
    ORDER BY queue, delivery LIMIT {MOST_STAGED}) AS delivered
GROUP BY job_name ORDER BY job_name
"""
_CLAIMED = f"""
SELECT job_name, coalesce(claimed_by, ''), date_part('epoch', claimed_at) FROM (
    SELECT * FROM inflight_jobs WHERE {IS_CLAIMED} ORDER BY lease_expires_at DESC LIMIT {MOST}
) AS claimed WHERE queue = %(queue)s AND next_run_at IS NULL ORDER BY claimed_at, id
"""
_RETRYING = f"""
SELECT job_name, greatest(0, date_part('epoch', next_run_at - now())) FROM (
    SELECT job_name, next_run_at FROM inflight_jobs WHERE next_run_at IS NOT NULL AND queue = %(queue)s
    ORDER BY queue, next_run_at LIMIT {MOST}) AS waiting
"""
# Jobs of one transaction have one `staged_at`. Those of a bulk run are no sign of what comes next.
_ARRIVED = f"""
SELECT coalesce(sum(jobs), 0)::bigint, coalesce(date_part('epoch', now() - min(staged_at)), 0) FROM (
    SELECT staged_at, count(*) AS jobs FROM (
        (SELECT staged_at FROM staged_jobs_ready
         WHERE {_OF_QUEUE} AND staged_at > to_timestamp(%(since)s::float8) LIMIT {MOST_STAGED})
        UNION ALL
        (SELECT staged_at FROM inflight_jobs WHERE {DELIVERED} AND queue = %(queue)s
            AND staged_at > to_timestamp(%(since)s::float8) LIMIT {MOST})
        UNION ALL
        (SELECT staged_at FROM (
            SELECT * FROM inflight_jobs WHERE {IS_CLAIMED} ORDER BY lease_expires_at DESC LIMIT {MOST}
         ) AS claimed WHERE queue = %(queue)s AND staged_at > to_timestamp(%(since)s::float8))
        UNION ALL
        (SELECT staged_at FROM finished_jobs
         WHERE queue = %(queue)s AND finished_at > to_timestamp(%(since)s::float8)
            AND staged_at > to_timestamp(%(since)s::float8)
         ORDER BY finished_at DESC LIMIT {MOST_FINISHED})
    ) AS came GROUP BY staged_at
) AS transactions WHERE jobs <= {BULK}
"""


class Finished(NamedTuple):
    """Job that has finished; times in seconds since 1970. One that was tried again was due when it was moved."""

    queue: str
    job_name: str
    process: str
    claimed_at: float
    finished_at: float
    moved_at: float = 0.0
    due_at: float = 0.0


class Waiting(NamedTuple):
    """Number of jobs of one name that are due; `patient` ones have a priority above 0."""

    job_name: str
    patient: bool
    jobs: int


class Later(NamedTuple):
    """Job that comes due after some seconds."""

    job_name: str
    seconds: float


class Claimed(NamedTuple):
    """Job that a process has claimed, at a time in seconds since 1970."""

    job_name: str
    process: str
    claimed_at: float


class Arrived(NamedTuple):
    """Number of jobs that came, and the seconds since the first of them."""

    jobs: int
    seconds: float


def finished(connection: Connection, queue: str, seconds: float) -> list[Finished]:
    """Read the latest jobs of a queue that have run and finished within some seconds, the latest first."""
    rows = connection.execute(_FINISHED, {"queue": queue, "seconds": seconds})
    return [Finished._make(row) for row in rows]


def due(connection: Connection, queue: str) -> list[Waiting]:
    """Count the staged jobs of a queue that are due, by name."""
    return [Waiting._make(row) for row in connection.execute(_DUE, {"queue": queue})]


def scheduled(connection: Connection, queue: str) -> list[Later]:
    """List the staged jobs of a queue whose time has not come, the next one first."""
    return [Later._make(row) for row in connection.execute(_SCHEDULED, {"queue": queue})]


def delivered(connection: Connection, queue: str) -> list[Waiting]:
    """Count the jobs of a queue that wait for a worker, by name."""
    rows = connection.execute(_DELIVERED, {"queue": queue})
    return [Waiting(name, patient=False, jobs=jobs) for name, jobs in rows]


def claimed(connection: Connection, queue: str) -> list[Claimed]:
    """List the jobs of a queue that processes have claimed, the oldest claim first."""
    return [Claimed._make(row) for row in connection.execute(_CLAIMED, {"queue": queue})]


def retrying(connection: Connection, queue: str) -> list[Later]:
    """List the jobs of a queue that wait for their next attempt, the next one first."""
    return [Later._make(row) for row in connection.execute(_RETRYING, {"queue": queue})]


def arrived(connection: Connection, queue: str, since: float) -> Arrived:
    """Count the jobs of a queue that were staged since a time, in seconds since 1970; without those of bulk runs."""
    ((jobs, seconds),) = connection.execute(_ARRIVED, {"queue": queue, "since": since}).fetchall()
    return Arrived(int(jobs), float(seconds))
