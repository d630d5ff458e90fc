"""Outcomes of claims other than a finish: the job leaves `inflight_jobs` dead, or waits there for its next attempt.

Each is recorded under the fence of its claim; a stale claim changes nothing. Most may be sent again when
the answer was lost: the docstrings say which.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from psycopg.types.json import Jsonb

from drain.database.postgres import Connection, fetch_one
from drain.tables import pauses
from drain.tables.columns import ATTEMPTS, DEAD, ERROR_NOW, JOB, LEASE_IS_OVER
from drain.tables.fences import THIS_CLAIM, Fenced, of_one

RETRY_LATER = f"""
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    attempts = {ATTEMPTS},
    batched = false,
    next_run_at = clock_timestamp() + make_interval(secs => %(wait)s),
    failed_at = clock_timestamp(),
    last_error = {ERROR_NOW}
WHERE {THIS_CLAIM}
"""


def retry_later(connection: Connection, claim: Fenced, wait_seconds: float, error: Mapping[str, str]) -> bool:
    """Give the claim back and let the job wait for its next attempt; False if the claim is stale."""
    parameters = {**of_one(claim), "wait": wait_seconds, "error": Jsonb(dict(error))}
    return connection.execute(RETRY_LATER, parameters).rowcount == 1


# The token stays as it is: it only ever grows. After the lease has been given back, no attempt is taken off again: so
# the statement may be sent again when its answer was lost.
DEFER = f"""
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    next_run_at = greatest(clock_timestamp(),
        coalesce(%(until)s::timestamptz, clock_timestamp() + make_interval(secs => %(wait)s))),
    attempts = attempts - CASE WHEN lease_expires_at IS NULL OR batched THEN 0 ELSE 1 END,
    batched = false
WHERE {THIS_CLAIM}
"""


def defer(connection: Connection, claim: Fenced, when: float | datetime) -> bool:
    """Undo the claim, and let the job wait until a time, or for a number of seconds; False if the claim is stale.

    A time that has passed means now. The attempt counts only if the job was redelivered since its lease ran out.
    """
    until, wait = (when, 0.0) if isinstance(when, datetime) else (None, when)
    parameters = {**of_one(claim), "until": until, "wait": wait}
    return connection.execute(DEFER, parameters).rowcount == 1


# Reason of the pause that `slow_down` makes, for people.
RATE_LIMITED = "rate limited"
SLOW_DOWN = f"{DEFER.rstrip()}\nRETURNING queue, key\n"


def slow_down(connection: Connection, claim: Fenced, when: float | datetime) -> bool:
    """Defer the job as `defer` does, and pause its key, or its queue if it has no key, until then.

    Both in one transaction. May be sent again when its answer was lost: the pause is then that of the later call.
    """
    until, wait = (when, 0.0) if isinstance(when, datetime) else (None, when)
    parameters = {**of_one(claim), "until": until, "wait": wait}
    with connection.transaction():
        row = connection.execute(SLOW_DOWN, parameters).fetchone()
        if row is not None:
            queue, key = row
            pauses.pause_for(connection, queue, key, when, reason=RATE_LIMITED, paused_by=claim.worker)
    return row is not None


# As DEFER: after the lease has been given back, nothing is counted again, so the statement may be sent again when its
# answer was lost. `failed_at` stays: a deploy is no sign that the target of a queue is down.
INTERRUPT = f"""
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    next_run_at = clock_timestamp() + make_interval(secs => %(wait)s),
    attempts = attempts - CASE WHEN lease_expires_at IS NULL OR batched THEN 0 ELSE 1 END,
    interruptions = interruptions + CASE WHEN lease_expires_at IS NULL THEN 0 ELSE 1 END,
    batched = false,
    last_error = {ERROR_NOW}
WHERE {THIS_CLAIM}
    AND interruptions < %(most)s + CASE WHEN lease_expires_at IS NULL THEN 1 ELSE 0 END
RETURNING interruptions
"""
# Upper bound of the attempts of one job that do not count because their worker was stopping.
MOST_INTERRUPTIONS = 20


def interrupt(
    connection: Connection, claim: Fenced, wait_seconds: float, error: Mapping[str, str]
) -> int | None:
    """Give the claim back after its worker has interrupted the attempt, which does not count.

    Returns:
        Number of interruptions of this job, or None: the claim is stale, or there were `MOST_INTERRUPTIONS` before;
        then nothing has been changed.
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
    """Give up a claimed job: it moves to `dead_jobs`.

    Args:
        connection: Any.
        claim: The claim.
        reason: One of the reasons that `schema.sql` names.
        explanation: Sentence for people.
        error: Error of this attempt; None leaves the error of the attempt before.
        ran: This claim was an attempt, and was not made only to bury the job.

    Returns:
        True if the job is dead under this token, so the call may be repeated. After a failover that lost the call,
        another claim of the job may have buried it.
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
    """Give up a job whose row makes each claim fail; False if the row is gone, or claimed after all."""
    parameters = {"id": job_id, "explanation": explanation}
    return connection.execute(BURY_UNCLAIMABLE, parameters).rowcount == 1
