"""Claims: an unclaimed job of `inflight_jobs` becomes one worker's, for as long as its lease holds.

A claim names its delivery, and only the current delivery of a row can be claimed. A row that waits for its next attempt
can be claimed by nobody, even when its time has come: only the enqueuer makes it claimable, under a new number.

`claim` asks for one job, and decides each case. `claim_many` asks for a batch, and leaves to `claim` those that need a
look at their history.
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
    """Job that belongs to one worker for as long as the lease holds.

    Attributes:
        job_args, job_kwargs, context: JSON texts, as they were staged.
        attempts: Number of claims of this job that count, this one included.
        max_attempts: Upper bound of the attempts: the row's own, or else the registration's; 0 for none.
        timeout_seconds: Time limit of an attempt: the row's own, or else the registration's.
        lease_seconds: Length of the lease, from the claim or from a heartbeat on.
        fencing_token: Token of this claim, the only one that can finish the job until another claim is made.
        lease_expires_at: End of the lease, by the database's clock.
        expired: The job's `expires_at` has passed before its first claim: the job is buried, and not run.
        failed_before: The attempt before this one failed, and its worker recorded the failure.
        salt: Random value that the row was staged with; None for rows from before version 2 of the schema.
        worker: Name of the process that made the claim.
        installation: Id of the database that the job belongs to.
        waited_seconds: Time since the job was due, by the database's clock; None if it has begun before.
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
        """True if the last attempt that the job may have ended with its worker: it is buried, and not run.

        A job that has failed was promised this attempt, though its limit may have been lowered since.
        """
        return 0 < self.max_attempts < self.attempts and not self.failed_before


_INSTALLATION = "(SELECT installation FROM drain_state WHERE only_row)"
_WAITED = f"date_part('epoch', clock_timestamp() - {finite('greatest(scheduled_at, staged_at)')})"
# Statement of one claim: it starts the lease, by the database's clock, and raises the token, or does nothing.
# The registrations travel along as {name: [max_attempts, timeout_seconds, lease_seconds]}, because it is known only
# once the row has been found which of them applies; the names as the hex digits of their UTF-8, because the database's
# encoding may lack characters of some.
#
# set_config() makes this commit durable, and no other: the next claim must not get the token of one that a crash undid.
#
# A worker that was forked for this one job sends no statement before this one: so it also compares the version of the
# schema, and returns the process id of the server's session.
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
    """Claim one job; None if it is claimed already, waits, was delivered again, has ended, or is another one.

    Args:
        connection: In autocommit mode: the claim must be durable before the job runs.
        job_id: Id of the job.
        worker: Name of the claiming worker, for people to read.
        limits: Limits of each registered name; other names get the defaults.
        delivery: Number of the delivery, claimed only if it is the current one; None, for calls by hand: any.
        queue: Name of the queue that the delivery came from: only a job of this queue is claimed.
        installation: UUID of the database that the delivery came from: only a job of that database is claimed.
        version: Version of the schema: with any other one in the database, nothing is claimed.
        again: This worker has asked before and got no answer: a claim of its own is the one that it asked for.

    Raises:
        psycopg.DataError: The row holds a number that cannot be raised, such as the largest token there is.
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
    # In binary: psycopg reads times as text in no DateStyle but ISO, and by then the claim has been committed.
    row = connection.execute(CLAIM, parameters, binary=True).fetchone()
    if row is None:
        return None
    detect_pooler(connection, row[-1])
    return Claim._make(row[:-1])


# Statement of a batch: it claims the jobs that one worker may hold together, which are unclaimed, not expired, and
# either new or failed by themselves the last time. Jobs whose last worker died, or that asked to be run later, are
# claimed one by one, where it is decided whether they are buried; so a batch needs no look at a row's history.
#
# An attempt in a batch counts when it ends (`batched`): if the worker died, it would be unknown which jobs had begun.
_MINE_ALREADY = "%(again)s AND claimed_by = %(worker)s AND lease_expires_at >= clock_timestamp()"
_THESE_DELIVERIES = these_rows(deliveries="delivery")
# As `_claim_of` reads them.
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
    """Claim the jobs among these that may be claimed together, in one statement; the others stay as they are.

    Args:
        connection: In autocommit mode, as for `claim`.
        deliveries: Ids of jobs, none of which this worker holds, with the number of the delivery of each.
        worker, limits, queue, again: As for `claim`.
        alone: There is one id, and its job begins at once: its attempt counts from now on.

    Returns:
        The claims, in the order of `deliveries`. `left_to_claim` finds those of the others that `claim` may get.

    Raises:
        psycopg.DataError: A row holds a number that cannot be raised; no job has been claimed.
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
            # A job that has expired, or whose last attempt ended with its worker, is not claimed in a batch.
            *(False, False, row[12], worker),
            *row[13:],
        )
    )


def left_to_claim(
    connection: Connection, deliveries: Mapping[int, int], queue: str | None = None
) -> set[int]:
    """Find the jobs among these that no worker holds, and whose delivery is the current one; of one queue or of any."""
    ids, numbers = id_array(deliveries), id_array(deliveries.values())
    parameters = {"ids": ids, "deliveries": numbers, "queue": queue}
    return {job_id for (job_id,) in connection.execute(LEFT_TO_CLAIM, parameters)}


READ_CLAIM = f"""
SELECT {_COLUMNS}
FROM inflight_jobs WHERE {THIS_CLAIM} AND NOT {NOT_CLAIMED}
"""


def read_claim(connection: Connection, fence: Fenced, limits: Mapping[str, Limits]) -> Claim | None:
    """Read a claim that was made before; None unless it is still the current one and has no recorded outcome."""
    row = connection.execute(READ_CLAIM, of_one(fence), binary=True).fetchone()
    return None if row is None else _claim_of(row, limits, fence.worker)


def _hex(name: str) -> str:
    return name.encode(errors="surrogatepass").hex()
