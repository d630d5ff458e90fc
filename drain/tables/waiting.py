"""Oldest waiting jobs and next due ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import BLOCKED_AT, DELIVERED, HAS_RUN, finite
from drain.tables.heads import heads

# Suggests a broken target or code.
FAILURES_IN_A_ROW = 5
# Due time, or last known time of a later attempt.
WAITS_SINCE = finite("""CASE WHEN claimed_at IS NULL AND history IS NULL THEN greatest(scheduled_at, staged_at)
    ELSE greatest(moved_at, claimed_at, failed_at, lease_expires_at) END""")
_OLDEST_DELIVERIES = f"""{heads("inflight_jobs", f"{DELIVERED} AND queue > %(after)s::text", "delivery")}
SELECT queue, delivery FROM heads LIMIT %(limit)s::bigint
"""
_OLDEST_DELIVERIES_FROM = f"""
SELECT known.queue, oldest.delivery
FROM unnest(%s::text[], %s::bigint[]) AS known (queue, delivery), LATERAL (
    SELECT delivery FROM inflight_jobs AS job
    WHERE {DELIVERED}
        AND job.queue = known.queue AND job.delivery >= known.delivery
    ORDER BY job.delivery LIMIT 1) AS oldest
"""
NEXT_ATTEMPTS = heads("inflight_jobs", "next_run_at IS NOT NULL", "next_run_at")
DUE_RETRIES = f"""{NEXT_ATTEMPTS}
SELECT queue, date_part('epoch', clock_timestamp() - {finite("next_run_at")})
FROM heads WHERE next_run_at <= clock_timestamp()
"""
_RETRYING_QUEUES = f"""{NEXT_ATTEMPTS}
SELECT queue, next_run_at <= now(), last_finish.at, clock_timestamp(), %(failures)s = (
    SELECT count(*) FROM (
        SELECT FROM inflight_jobs AS failed
        WHERE failed.queue = heads.queue AND failed.failed_at > coalesce(last_finish.at, '-infinity')
        ORDER BY failed.failed_at LIMIT %(failures)s) AS latest)
FROM heads, LATERAL (
    SELECT CASE WHEN max(finished_at) IS NOT NULL THEN {finite("max(finished_at)")} END AS at FROM finished_jobs
    WHERE queue = heads.queue AND {HAS_RUN}) AS last_finish
"""
NEXT_SCHEDULED = f"""
SELECT least(
    extract(epoch FROM (
        SELECT min(scheduled_at) FROM staged_jobs_scheduled WHERE scheduled_at > now() AND scheduled_at < {BLOCKED_AT})
        - clock_timestamp())::float8,
    CASE WHEN EXISTS (SELECT FROM staged_jobs_scheduled WHERE scheduled_at <= now()) THEN %s::float8 END)
"""


def seconds_to_next_scheduled(connection: Connection, if_due: float) -> float | None:
    """Return the seconds until the next scheduled row, if any; at most `if_due` while one is due."""
    (seconds,) = fetch_one(connection, NEXT_SCHEDULED, (if_due,))
    return None if seconds is None else float(seconds)


def oldest_deliveries(
    connection: Connection, after: str = "", limit: int | None = None
) -> list[tuple[str, int]]:
    """Return queues' lowest unclaimed delivery numbers."""
    rows = connection.execute(_OLDEST_DELIVERIES, {"after": after, "limit": limit})
    return [(queue, delivery) for queue, delivery in rows]


def oldest_deliveries_from(connection: Connection, bounds: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return queues' lowest unclaimed delivery from a bound on."""
    rows = connection.execute(_OLDEST_DELIVERIES_FROM, (list(bounds), list(bounds.values())))
    return [(queue, delivery) for queue, delivery in rows]


class Retrying(NamedTuple):
    """Queue with retries; `failing` after `FAILURES_IN_A_ROW` without a finish."""

    queue: str
    due: bool
    last_finish: datetime | None
    now: datetime
    failing: bool


def retrying_queues(connection: Connection) -> list[Retrying]:
    """Return queues with waiting retries."""
    rows = connection.execute(_RETRYING_QUEUES, {"failures": FAILURES_IN_A_ROW}, binary=True)
    return [Retrying._make(row) for row in rows]


def is_under_way(connection: Connection, job_id: int) -> bool:
    """Return True if the job is delivered or claimed."""
    statement = "SELECT EXISTS (SELECT FROM inflight_jobs WHERE id = %s AND next_run_at IS NULL)"
    (under_way,) = fetch_one(connection, statement, (job_id,))
    return bool(under_way)
