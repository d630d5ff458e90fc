"""Outcomes other than a finish: the job dies, or waits for its next attempt.

A stale claim changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from psycopg.types.json import Jsonb

from drain.database.postgres import Connection, fetch_one
from drain.tables import pauses
from drain.tables.columns import ATTEMPTS, DEAD, JOB, LEASE_IS_OVER
from drain.tables.failures import ERROR_NOW, INTERRUPTION_NOW
from drain.tables.fences import THIS_CLAIM, Fenced, of_one

# After a redelivery the job may have been moved to a later time, which stays; greatest() ignores NULL.
RETRY_LATER = f"""
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    attempts = {ATTEMPTS},
    batched = false,
    next_run_at = greatest(next_run_at, clock_timestamp() + make_interval(secs => %(wait)s)),
    failed_at = clock_timestamp(),
    last_error = {ERROR_NOW}
WHERE {THIS_CLAIM}
"""


def retry_later(connection: Connection, claim: Fenced, wait_seconds: float, error: Mapping[str, str]) -> bool:
    """Let the job wait; False if the claim is stale."""
    parameters = {**of_one(claim), "wait": wait_seconds, "error": Jsonb(dict(error))}
    return connection.execute(RETRY_LATER, parameters).rowcount == 1


# Repeatable: without the lease, no attempt is subtracted again.
DEFER = f"""
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    next_run_at = greatest(next_run_at, clock_timestamp(),
        coalesce(%(until)s::timestamptz, clock_timestamp() + make_interval(secs => %(wait)s))),
    attempts = attempts - CASE WHEN lease_expires_at IS NULL OR batched THEN 0 ELSE 1 END,
    batched = false
WHERE {THIS_CLAIM}
"""


def defer(connection: Connection, claim: Fenced, when: float | datetime) -> bool:
    """Undo the claim until a time or for some seconds; False if it is stale.

    The attempt counts only if redelivered after an expired lease.
    """
    until, wait = (when, 0.0) if isinstance(when, datetime) else (None, when)
    parameters = {**of_one(claim), "until": until, "wait": wait}
    return connection.execute(DEFER, parameters).rowcount == 1


RATE_LIMITED = "rate limited"
SLOW_DOWN = f"{DEFER.rstrip()}\nRETURNING queue, key\n"


def slow_down(connection: Connection, claim: Fenced, when: float | datetime) -> bool:
    """Defer the job and pause its key, or else its queue; repeatable."""
    until, wait = (when, 0.0) if isinstance(when, datetime) else (None, when)
    parameters = {**of_one(claim), "until": until, "wait": wait}
    with connection.transaction():
        row = connection.execute(SLOW_DOWN, parameters).fetchone()
        if row is not None:
            queue, key = row
            pauses.pause_for(connection, queue, key, when, reason=RATE_LIMITED, paused_by=claim.worker)
    return row is not None


# Repeatable like DEFER. `failed_at` stays: a deploy is not a failure.
INTERRUPT = f"""
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    next_run_at = greatest(next_run_at, clock_timestamp() + make_interval(secs => %(wait)s)),
    attempts = attempts - CASE WHEN lease_expires_at IS NULL OR batched THEN 0 ELSE 1 END,
    interruptions = interruptions + CASE WHEN lease_expires_at IS NULL THEN 0 ELSE 1 END,
    batched = false,
    last_error = {INTERRUPTION_NOW}
WHERE {THIS_CLAIM}
    AND interruptions < %(most)s + CASE WHEN lease_expires_at IS NULL THEN 1 ELSE 0 END
RETURNING interruptions
"""
MOST_INTERRUPTIONS = 20


def interrupt(
    connection: Connection, claim: Fenced, wait_seconds: float, error: Mapping[str, str]
) -> int | None:
    """Release a job whose worker must stop; the attempt does not count.

    Return how often this happened; None if stale or after `MOST_INTERRUPTIONS`.
    """
    parameters = {
        **of_one(claim),
        "wait": wait_seconds,
        "error": Jsonb(dict(error)),
        "most": MOST_INTERRUPTIONS,
    }
    row = connection.execute(INTERRUPT, parameters).fetchone()
    return None if row is None else int(row[0])


BURY_CLAIMED = f"""
WITH given_up AS (
    DELETE FROM inflight_jobs WHERE {THIS_CLAIM} RETURNING *
), buried AS (
    INSERT INTO dead_jobs ({DEAD})
    SELECT {JOB}, {ATTEMPTS} - CASE WHEN %(ran)s THEN 0 ELSE 1 END,
        coalesce({ERROR_NOW}, last_error),
        %(reason)s, %(explanation)s
    FROM given_up RETURNING id
)
SELECT EXISTS (SELECT FROM buried)
    OR EXISTS (SELECT FROM dead_jobs WHERE id = %(id)s AND fencing_token = %(token)s
        AND salt IS NOT DISTINCT FROM %(salt)s::bigint)
"""


def bury_claimed(
    connection: Connection,
    claim: Fenced,
    *,
    reason: str,
    explanation: str,
    error: Mapping[str, str] | None = None,
    ran: bool = True,
) -> bool:
    """Move a claimed job to `dead_jobs`; repeatable.

    Args:
        reason: One of those in `schema.sql`.
        explanation: Sentence for users.
        error: None keeps the previous attempt's.
        ran: False if claimed only to be buried.

    Returns:
        True if dead under this token; after a lossy failover, perhaps by another claim.
    """
    parameters = {
        **of_one(claim),
        "reason": reason,
        "explanation": explanation,
        "error": None if error is None else Jsonb(dict(error)),
        "ran": ran,
    }
    (dead,) = fetch_one(connection, BURY_CLAIMED, parameters)
    return bool(dead)


BURY_UNCLAIMABLE = f"""
WITH given_up AS (
    DELETE FROM inflight_jobs WHERE id = %(id)s AND {LEASE_IS_OVER}
    RETURNING *
)
INSERT INTO dead_jobs ({DEAD})
SELECT {JOB}, attempts, last_error, 'unreadable', %(explanation)s FROM given_up
"""


def bury_unclaimable(connection: Connection, job_id: int, explanation: str) -> bool:
    """Bury a job whose every claim fails; False if gone or claimed."""
    parameters = {"id": job_id, "explanation": explanation}
    return connection.execute(BURY_UNCLAIMABLE, parameters).rowcount == 1


RECORD_STALE = "INSERT INTO stale_finishes (id, fencing_token, claimed_by, outcome) VALUES (%s, %s, %s, %s)"


def record_stale(connection: Connection, claim: Fenced, outcome: str) -> None:
    """Record an outcome refused as stale."""
    connection.execute(RECORD_STALE, (claim.id, claim.fencing_token, claim.worker, outcome))
