"""Claims: a delivery of a job becomes one worker's until its lease expires.

A waiting retry, even a due one, must be redelivered first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from drain.database.postgres import Connection, detect_pooler
from drain.tables.columns import (
    ATTEMPTS,
    CLAIMED,
    LEASE_IS_OVER,
    NOT_CLAIMED,
    NOT_WAITING,
    finite,
    id_array,
    these_rows,
)
from drain.tables.fences import THIS_CLAIM, Fenced, of_one
from drain.tables.limits import DEFAULT_LEASE_SECONDS, Limits

_DEFAULT_LIMITS = Limits()


class Claim(NamedTuple):
    """Job held by one worker under a lease.

    Attributes:
        job_args, job_kwargs, context: JSON as staged.
        attempts: Claims that count, including this one.
        max_attempts: 0 for no limit.
        lease_expires_at: By the database's clock.
        expired: `expires_at` passed before the first claim: bury the job.
        failed_before: The previous attempt failed and was recorded.
        salt: Random value from staging; None before schema version 2.
        waited_seconds: Time since due; None unless this is the first start.
    """

    id: int
    job_name: str
    job_args: str
    job_kwargs: str
    queue: str
    tag: str | None
    context: str | None
    attempts: int
    max_attempts: int
    timeout_seconds: int
    lease_seconds: float
    fencing_token: int
    lease_expires_at: datetime
    expired: bool
    failed_before: bool
    salt: int | None
    worker: str
    installation: UUID
    waited_seconds: float | None = None

    @property
    def is_spent(self) -> bool:
        """True if the last attempt died with its worker: bury the job.

        After a recorded failure the next attempt is granted, even if the limit was lowered since.
        """
        return 0 < self.max_attempts < self.attempts and not self.failed_before


_INSTALLATION = "(SELECT installation FROM drain_state WHERE only_row)"
_WAITED = f"date_part('epoch', clock_timestamp() - {finite('greatest(scheduled_at, staged_at)')})"
# The row decides whether the registration, sent as {name: [max_attempts, timeout_seconds, lease_seconds]}, applies.
# Names are in hex, as the database's encoding may lack characters.
#
# set_config() makes the commit durable: after a crash, no claim may reuse its token. A forked worker has no earlier
# statement to return schema version and backend pid.
CLAIM = f"""
WITH found AS (
    SELECT id,
        coalesce(max_attempts, (limits ->> 0)::integer, %(max_attempts)s) AS max_attempts,
        coalesce(timeout_seconds, (limits ->> 1)::integer, %(timeout_seconds)s) AS timeout_seconds,
        coalesce((limits ->> 2)::float8, %(lease_seconds)s) AS lease_seconds,
        coalesce(failed_at >= claimed_at, false) AS failed_before,
        claimed_at IS NOT NULL AS claimed_before,
        set_config('synchronous_commit',
            replace(current_setting('synchronous_commit'), 'off', 'on'), true) AS durable
    FROM inflight_jobs, LATERAL (
        SELECT %(limits)s -> encode(convert_to(job_name, 'UTF8'::name), 'hex') AS limits) AS registered
    WHERE id = %(id)s
        AND (%(queue)s::text IS NULL OR queue = %(queue)s)
        AND (%(installation)s::text IS NULL OR %(installation)s = {_INSTALLATION}::text)
        AND (%(version)s::integer IS NULL OR %(version)s = (SELECT max(version) FROM drain_schema))
)
UPDATE inflight_jobs AS job SET
    fencing_token = job.fencing_token + 1,
    attempts = job.attempts + CASE
        WHEN %(again)s AND job.claimed_by = %(worker)s AND job.lease_expires_at >= clock_timestamp() THEN 0
        ELSE 1 END,
    claimed_at = clock_timestamp(),
    claimed_by = %(worker)s,
    batched = false,
    lease_expires_at = clock_timestamp() + make_interval(secs => found.lease_seconds)
FROM found
WHERE job.id = found.id AND job.id = %(id)s
    AND (job.lease_expires_at IS NULL OR job.lease_expires_at < clock_timestamp()
        OR %(again)s AND job.claimed_by = %(worker)s)
    AND job.next_run_at IS NULL AND (%(delivery)s::bigint IS NULL OR job.delivery = %(delivery)s)
RETURNING job.id, {CLAIMED}, job.attempts, found.max_attempts, found.timeout_seconds, found.lease_seconds,
    job.fencing_token, job.lease_expires_at,
    coalesce(job.expires_at <= clock_timestamp() AND NOT found.claimed_before, false) AS expired,
    found.failed_before, job.salt, job.claimed_by, {_INSTALLATION},
    CASE WHEN NOT found.claimed_before AND job.history IS NULL THEN {_WAITED} END, pg_backend_pid()
"""


def claim(
    connection: Connection,
    job_id: int,
    *,
    worker: str,
    limits: Mapping[str, Limits],
    delivery: int | None = None,
    queue: str | None = None,
    installation: str | None = None,
    version: int | None = None,
    again: bool = False,
) -> Claim | None:
    """Claim one job; None if it cannot be claimed or does not match.

    Args:
        connection: In autocommit mode: the claim must be durable before the job runs.
        limits: By job name; others get the defaults.
        delivery, queue, installation, version: Required values; None for any.
        again: After a lost answer: accept this worker's claim as its own.

    Raises:
        psycopg.DataError: A number of the row, such as the token, cannot grow.
    """
    parameters = {
        "id": job_id,
        "worker": worker,
        "limits": Jsonb({_hex(name): numbers for name, numbers in limits.items()}),
        "delivery": delivery,
        "queue": queue,
        "installation": installation,
        "version": version,
        "again": again,
        **Limits()._asdict(),
    }
    # In binary: psycopg parses text timestamps only in DateStyle ISO, and would fail after the commit.
    row = connection.execute(CLAIM, parameters, binary=True).fetchone()
    if row is None:
        return None
    detect_pooler(connection, row[-1])
    return Claim._make(row[:-1])


# An attempt in a batch counts when it ends (`batched`): if the worker dies, it is unknown which jobs had begun.
_MINE_ALREADY = "%(again)s AND claimed_by = %(worker)s AND lease_expires_at >= clock_timestamp()"
_THESE_DELIVERIES = these_rows(deliveries="delivery")
_COLUMNS = f"""id, {CLAIMED}, {ATTEMPTS}, max_attempts, timeout_seconds,
    fencing_token, lease_expires_at, salt, {_INSTALLATION},
    CASE WHEN failed_at IS NULL AND history IS NULL THEN {_WAITED} END"""
CLAIM_MANY = f"""
UPDATE inflight_jobs SET
    fencing_token = fencing_token + 1,
    attempts = attempts + CASE WHEN NOT %(alone)s OR {_MINE_ALREADY} THEN 0 ELSE 1 END,
    batched = NOT %(alone)s,
    claimed_at = clock_timestamp(),
    claimed_by = %(worker)s,
    lease_expires_at = clock_timestamp() + make_interval(secs => CASE WHEN %(same_lease)s THEN %(lease_seconds)s
        ELSE coalesce((%(leases)s ->> encode(convert_to(job_name, 'UTF8'::name), 'hex'))::float8,
            %(lease_seconds)s) END)
WHERE {_THESE_DELIVERIES} AND (%(queue)s::text IS NULL OR queue = %(queue)s)
    AND ({NOT_CLAIMED} AND {NOT_WAITING} AND (
            claimed_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
            OR failed_at >= claimed_at)
        OR {_MINE_ALREADY})
    AND (SELECT set_config('synchronous_commit',
        replace(current_setting('synchronous_commit'), 'off', 'on'), true)) <> ''
RETURNING {_COLUMNS}
"""
LEFT_TO_CLAIM = f"""
SELECT id FROM inflight_jobs WHERE {_THESE_DELIVERIES} AND (%(queue)s::text IS NULL OR queue = %(queue)s)
    AND {LEASE_IS_OVER} AND {NOT_WAITING}
"""


def claim_many(
    connection: Connection,
    deliveries: Mapping[int, int],
    *,
    worker: str,
    limits: Mapping[str, Limits],
    queue: str | None = None,
    alone: bool = False,
    again: bool = False,
) -> list[Claim]:
    """Claim new and failed jobs, in this order; see also `left_to_claim`.

    Args:
        connection: In autocommit mode.
        deliveries: By job id; this worker holds none of them.
        alone: A single job that begins at once, so its attempt counts now.

    Raises:
        psycopg.DataError: A number of a row cannot grow; nothing is claimed.
    """
    leases = {
        _hex(name): each.lease_seconds
        for name, each in limits.items()
        if each.lease_seconds != DEFAULT_LEASE_SECONDS
    }
    parameters = {
        "ids": id_array(deliveries),
        "deliveries": id_array(deliveries.values()),
        "queue": queue,
        "worker": worker,
        "same_lease": not leases,
        "leases": Jsonb(leases),
        "lease_seconds": DEFAULT_LEASE_SECONDS,
        "alone": alone,
        "again": again,
    }
    rows = connection.execute(CLAIM_MANY, parameters, binary=True).fetchall()
    claims = {row[0]: _claim_of(row, limits, worker) for row in rows}
    return [claims[job_id] for job_id in deliveries if job_id in claims]


def _claim_of(row: Sequence[Any], limits: Mapping[str, Limits], worker: str) -> Claim:
    own = limits.get(row[1], _DEFAULT_LIMITS)
    return Claim._make(
        (
            *row[:8],
            own.max_attempts if row[8] is None else row[8],
            own.timeout_seconds if row[9] is None else row[9],
            own.lease_seconds,
            *row[10:12],
            # Expired jobs, and those whose worker died, are not claimed in a batch.
            *(False, False, row[12], worker),
            *row[13:],
        )
    )


def left_to_claim(
    connection: Connection, deliveries: Mapping[int, int], queue: str | None = None
) -> set[int]:
    """Return currently delivered jobs that no worker holds."""
    ids, numbers = id_array(deliveries), id_array(deliveries.values())
    parameters = {"ids": ids, "deliveries": numbers, "queue": queue}
    return {job_id for (job_id,) in connection.execute(LEFT_TO_CLAIM, parameters)}


READ_CLAIM = f"""
SELECT {_COLUMNS}
FROM inflight_jobs WHERE {THIS_CLAIM} AND NOT {NOT_CLAIMED}
"""


def read_claim(connection: Connection, fence: Fenced, limits: Mapping[str, Limits]) -> Claim | None:
    """Read an earlier claim; None if it is stale."""
    row = connection.execute(READ_CLAIM, of_one(fence), binary=True).fetchone()
    return None if row is None else _claim_of(row, limits, fence.worker)


def _hex(name: str) -> str:
    return name.encode(errors="surrogatepass").hex()
