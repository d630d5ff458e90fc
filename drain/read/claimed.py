"""Queries for claimed jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import ATTEMPTS, IS_CLAIMED

# Earliest lease end first.
MOST_CLAIMS = 10_000
# No process id has this many digits.
_DIGITS = 12
_COLUMNS = (
    f"id, job_name, queue, key, tag, {ATTEMPTS} AS attempt, batched, fencing_token, claimed_at, "
    "claimed_by, lease_expires_at, lease_expires_at < clock_timestamp() AS is_over, clock_timestamp() AS now"
)
LONGEST = f"""
WITH looked_at AS MATERIALIZED (
    SELECT id, claimed_at FROM inflight_jobs WHERE {IS_CLAIMED} ORDER BY lease_expires_at LIMIT %(most)s
), page AS (
    SELECT id FROM looked_at
    WHERE %(after_id)s::bigint IS NULL OR (claimed_at, id) > (%(after_at)s::timestamptz, %(after_id)s::bigint)
    ORDER BY claimed_at, id LIMIT %(limit)s
)
SELECT {_COLUMNS} FROM inflight_jobs WHERE id IN (SELECT id FROM page) ORDER BY claimed_at, id
"""
OVER = f"""
SELECT {_COLUMNS} FROM inflight_jobs WHERE {IS_CLAIMED} AND lease_expires_at < clock_timestamp()
ORDER BY lease_expires_at LIMIT %(limit)s
"""
BY_PROCESS = f"""
SELECT claimed_by, count(*) FROM (
    SELECT claimed_by FROM inflight_jobs WHERE {IS_CLAIMED} ORDER BY lease_expires_at LIMIT %(most)s) AS claim
GROUP BY claimed_by
"""
HELD = f"""
SELECT claimed_by, id, job_name, queue, claimed_at, latest_at FROM (
    SELECT *, max(claimed_at) OVER (PARTITION BY claimed_by) AS latest_at,
        row_number() OVER (PARTITION BY claimed_by ORDER BY claimed_at, id) AS place
    FROM (
        SELECT claimed_by, id, job_name, queue, claimed_at FROM inflight_jobs WHERE {IS_CLAIMED}
        ORDER BY lease_expires_at LIMIT %(most)s) AS claim
    WHERE claimed_by IS NOT NULL AND claimed_at IS NOT NULL) AS ranked
WHERE place = 1
"""
CLAIM_OF = f"SELECT {_COLUMNS}, next_run_at FROM inflight_jobs WHERE id = %s"
_MANY = f"""
SELECT count(*) FROM (
    SELECT FROM inflight_jobs WHERE {IS_CLAIMED} LIMIT %s) AS claim
"""


class After(NamedTuple):
    """Last job of the previous page."""

    claimed_at: datetime
    id: int


class Held(NamedTuple):
    """First job of a process, and its latest claim."""

    process: str
    id: int
    job_name: str
    queue: str
    claimed_at: datetime
    latest_at: datetime


def host_and_pid(process: str) -> tuple[str, int]:
    """Parse `claimed_by`; a malformed pid becomes 0."""
    host, _, pid = process.rpartition(":")[0].rpartition(":")
    return host, int(pid) if pid.isdecimal() and pid.isascii() and len(pid) < _DIGITS else 0


def longest(connection: Connection, limit: int, after: After | None = None) -> list[dict[str, Any]]:
    """List claimed jobs, longest first; a `batched` one may still wait."""
    place = after or After(None, None)  # type: ignore[arg-type]
    parameters = {"most": MOST_CLAIMS, "limit": limit, "after_at": place.claimed_at, "after_id": place.id}
    return _rows(connection, LONGEST, parameters)


def over(connection: Connection, limit: int) -> list[dict[str, Any]]:
    """List claims with expired leases, earliest first."""
    return _rows(connection, OVER, {"limit": limit})


def by_process(connection: Connection) -> dict[str, int]:
    """Count claims by process."""
    return dict(connection.execute(BY_PROCESS, {"most": MOST_CLAIMS}).fetchall())


def held(connection: Connection) -> list[Held]:
    """Read each process's first job."""
    return [Held._make(row) for row in connection.execute(HELD, {"most": MOST_CLAIMS}, binary=True)]


def are_too_many(connection: Connection) -> bool:
    """Return True above `MOST_CLAIMS`."""
    (found,) = fetch_one(connection, _MANY, (MOST_CLAIMS + 1,))
    return int(found) > MOST_CLAIMS


def claim_of(connection: Connection, job_id: int) -> dict[str, Any] | None:
    """Read the claim of a job, if in flight."""
    rows = _rows(connection, CLAIM_OF, [job_id])
    return rows[0] if rows else None


def _rows(connection: Connection, statement: str, parameters: Any) -> list[dict[str, Any]]:
    with psycopg.Cursor(connection, row_factory=dict_row) as cursor:
        return cursor.execute(statement.encode(), parameters, binary=True).fetchall()
