"""Out of `inflight_jobs`: claimed, finished, tried again, redelivered, or given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.errors import DivisionByZero
from psycopg.types.json import Jsonb

from drain.database.postgres import Connection, fetch_one, look_for_pooler
from drain.tables import JOB_COLUMNS, id_array
from drain.tables.limits import DEFAULT_LEASE_SECONDS, Limits

# Seconds; a hundred years.
EVER = 3.2e9

_DEFAULT_LIMITS = Limits()
_DELIVERED = "lease_expires_at IS NULL AND next_run_at IS NULL"


class Claim(NamedTuple):
    """A job that is ours for as long as the lease holds.

    Attributes:
        job_args, job_kwargs, context: JSON texts, as they were staged.
        attempts: Claims of this job so far, this one included.
        max_attempts: The row's own limit, or else the registration's; 0 for none.
        timeout_seconds: The row's own, or else the registration's.
        lease_seconds: For how long the claim holds, and by how much a heartbeat extends it.
        fencing_token: Only this token can finish the job, until somebody claims it anew.
        lease_expires_at: Until when it holds, by the database's clock.
        expired: The job's `expires_at` has passed, and nobody has claimed it before: it is ours to bury, not to run.
        failed_before: The attempt before this one failed, and its worker lived to say so.
        salt: A random value that the row was staged with; None for rows from before version 2 of the schema.
        installation: The database that the job belongs to.
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
    installation: UUID

    @property
    def is_spent(self) -> bool:
        """Whether its last attempt ended with its worker: then it is ours to bury, not to run.

        One that has failed was promised this attempt, though its limit may have been lowered since.
        """
        return 0 < self.max_attempts < self.attempts and not self.failed_before


# One statement: a claim takes the lease, by the database's clock, and raises the token, or does nothing.
# The registrations travel along as {name: [max_attempts, timeout_seconds, lease_seconds]}, because which of
# them applies is known only once the row has been found; the names as the hex digits of their UTF-8, because
# the database's encoding may lack characters of some.
#
# set_config() holds for this commit alone. A claim that a crash of the server takes back leaves a worker who goes
# on under a token that somebody else will get as well.
#
# A worker that was forked for this one job asks nothing else before: the claim also looks at the version of the
# schema and tells which session of the server it has come to.
_INSTALLATION = "(SELECT installation FROM drain_state WHERE only_row)"
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
    lease_expires_at = clock_timestamp() + make_interval(secs => found.lease_seconds),
    next_run_at = NULL
FROM found
WHERE job.id = found.id AND job.id = %(id)s
    AND (job.lease_expires_at IS NULL OR job.lease_expires_at < clock_timestamp()
        OR %(again)s AND job.claimed_by = %(worker)s)
    AND (job.next_run_at IS NULL OR job.next_run_at <= clock_timestamp())
RETURNING job.id, job.job_name, job.job_args::text, job.job_kwargs::text, job.queue, job.tag, job.context::text,
    job.attempts, found.max_attempts, found.timeout_seconds, found.lease_seconds,
    job.fencing_token, job.lease_expires_at,
    coalesce(job.expires_at <= clock_timestamp() AND NOT found.claimed_before, false) AS expired,
    found.failed_before, job.salt, {_INSTALLATION}, pg_backend_pid()
"""


def claim(
    connection: Connection,
    job_id: int,
    *,
    worker: str,
    limits: Mapping[str, Limits],
    queue: str | None = None,
    installation: str | None = None,
    version: int | None = None,
    again: bool = False,
) -> Claim | None:
    """Claim one job, or be refused: it is claimed already, not due, finished, dead, unknown, or not the one meant.

    Args:
        connection: In autocommit mode: the claim must be durable before the job runs.
        job_id: The job.
        worker: Who claims, for people to read.
        limits: Of each registered name; others get the defaults.
        queue: Name of the queue that its delivery came from: only a job of this queue is claimed.
        installation: UUID of the database that it was delivered from: only there it is claimed.
        version: Only if the database has this version of the schema.
        again: This worker has asked before and got no answer: a claim of its own is the one it asked for.

    Raises:
        psycopg.DataError: The row holds what cannot be counted on, such as the largest token there is.
    """
    parameters = {
        "id": job_id,
        "worker": worker,
        "limits": Jsonb({_hex(name): numbers for name, numbers in limits.items()}),
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
    look_for_pooler(connection, row[-1])
    return Claim._make(row[:-1])


# Takes the jobs that one worker may take together: unclaimed and due, not expired, and either new or failed by
# themselves the last time. Those whose last worker died, or that asked to be run later, are claimed singly, where
# it is decided whether they are to be buried; so the row of a batch needs no look at what it was before.
#
# An attempt that is one of many counts when it ends, for nobody would know which of them had begun: `batched`.
#
# Written so that no condition implies that of an index other than the primary key: a planner that believes the table to
# be empty would read all of such an index, as it did through a pooler.
_MINE_ALREADY = "%(again)s AND claimed_by = %(worker)s AND lease_expires_at >= clock_timestamp()"
_NOT_CLAIMED = "coalesce(lease_expires_at, '-infinity') = '-infinity'"
_DUE = "coalesce(next_run_at, '-infinity') <= clock_timestamp()"
CLAIM_MANY = f"""
UPDATE inflight_jobs SET
    fencing_token = fencing_token + 1,
    attempts = attempts + CASE WHEN NOT %(alone)s OR {_MINE_ALREADY} THEN 0 ELSE 1 END,
    batched = NOT %(alone)s,
    claimed_at = clock_timestamp(),
    claimed_by = %(worker)s,
    lease_expires_at = clock_timestamp() + make_interval(secs => CASE WHEN %(same_lease)s THEN %(lease_seconds)s
        ELSE coalesce((%(leases)s ->> encode(convert_to(job_name, 'UTF8'::name), 'hex'))::float8,
            %(lease_seconds)s) END),
    next_run_at = NULL
WHERE id = ANY (%(ids)s::bigint[]) AND (%(queue)s::text IS NULL OR queue = %(queue)s)
    AND ({_NOT_CLAIMED} AND {_DUE} AND (
            claimed_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
            OR failed_at >= claimed_at)
        OR {_MINE_ALREADY})
    AND (SELECT set_config('synchronous_commit',
        replace(current_setting('synchronous_commit'), 'off', 'on'), true)) <> ''
RETURNING id, job_name, job_args::text, job_kwargs::text, queue, tag, context::text,
    attempts + batched::integer, max_attempts, timeout_seconds, fencing_token, lease_expires_at,
    salt, {_INSTALLATION}
"""
LEFT_TO_CLAIM = f"""
SELECT id FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[]) AND (%(queue)s::text IS NULL OR queue = %(queue)s)
    AND coalesce(lease_expires_at, '-infinity') < clock_timestamp() AND {_DUE}
"""


def claim_many(
    connection: Connection,
    ids: Sequence[int],
    *,
    worker: str,
    limits: Mapping[str, Limits],
    queue: str | None = None,
    alone: bool = False,
    again: bool = False,
) -> list[Claim]:
    """Claim those of these jobs that may be claimed together, in one statement; the others stay as they are.

    Args:
        connection: In autocommit mode, as for `claim`.
        ids: None of which this worker holds.
        worker: Who claims, for people to read.
        limits: Of each registered name; others get the defaults.
        queue: As for `claim`.
        alone: There is one id, and it is begun at once: its attempt counts from now on.
        again: As for `claim`.

    Returns:
        The claims, in the order of `ids`. What is missing among them may still be to be claimed singly:
        `left_to_claim` tells.

    Raises:
        psycopg.DataError: One of the rows holds what cannot be counted on; none has been claimed.
    """
    leases = {
        _hex(name): each.lease_seconds
        for name, each in limits.items()
        if each.lease_seconds != DEFAULT_LEASE_SECONDS
    }
    parameters = {
        "ids": id_array(ids),
        "queue": queue,
        "worker": worker,
        "same_lease": not leases,
        "leases": Jsonb(leases),
        "lease_seconds": DEFAULT_LEASE_SECONDS,
        "alone": alone,
        "again": again,
    }
    rows = connection.execute(CLAIM_MANY, parameters, binary=True).fetchall()
    claims = {row[0]: _claim_of(row, limits) for row in rows}
    return [claims[job_id] for job_id in ids if job_id in claims]


def _claim_of(row: Sequence[Any], limits: Mapping[str, Limits]) -> Claim:
    own = limits.get(row[1], _DEFAULT_LIMITS)
    return Claim._make(
        (
            *row[:8],
            own.max_attempts if row[8] is None else row[8],
            own.timeout_seconds if row[9] is None else row[9],
            own.lease_seconds,
            *row[10:12],
            # What has expired, or whose last attempt ended with its worker, is claimed singly.
            *(False, False),
            *row[12:],
        )
    )


def left_to_claim(connection: Connection, ids: Sequence[int], *, queue: str | None = None) -> set[int]:
    """Those of these jobs that nobody holds and that are due; with a queue, only jobs of that queue."""
    parameters = {"ids": id_array(ids), "queue": queue}
    return {job_id for (job_id,) in connection.execute(LEFT_TO_CLAIM, parameters)}


CLAIMED = f"""
SELECT id, job_name, job_args::text, job_kwargs::text, queue, tag, context::text, attempts + batched::integer,
    max_attempts, timeout_seconds, fencing_token, lease_expires_at, salt, {_INSTALLATION}
FROM inflight_jobs WHERE id = %s AND fencing_token = %s AND NOT {_NOT_CLAIMED}
"""


def claimed(connection: Connection, job_id: int, token: int, limits: Mapping[str, Limits]) -> Claim | None:
    """A claim that has been made, if it is still the current one and its outcome has not been recorded."""
    row = connection.execute(CLAIMED, (job_id, token), binary=True).fetchone()
    return None if row is None else _claim_of(row, limits)


# Ids and tokens are compared by a hash of both lists, whatever the planner takes the table for: IS TRUE keeps it from
# making a join of the two, and a join of what it believes to be empty compares each row with each. The ids are named
# once more, so that the rows are looked up by them.
_THESE = """id = ANY (%(ids)s::bigint[])
    AND ((id, fencing_token) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(tokens)s::bigint[]))) IS TRUE"""
EXTEND_MANY = f"""
UPDATE inflight_jobs SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
WHERE {_THESE} AND next_run_at IS NULL
RETURNING id, lease_expires_at
"""


def extend_many(connection: Connection, claims: Sequence[Claim]) -> dict[int, datetime]:
    """Let the leases begin anew, also those that ran out, if nobody has claimed the job since.

    One statement for all leases of one length, most often for all.

    Returns:
        Until when each lease holds. Missing are those whose token is stale, or whose job waits for its next attempt.
    """
    extended: dict[int, datetime] = {}
    for lease_seconds in {claim.lease_seconds for claim in claims}:
        alike = [claim for claim in claims if claim.lease_seconds == lease_seconds]
        parameters = {**_ids_and_tokens(alike), "lease_seconds": lease_seconds}
        extended.update(connection.execute(EXTEND_MANY, parameters, binary=True).fetchall())
    return extended


# What was claimed by a batch was new, or had failed: both stand as before the claim. The last condition is that the
# lease has not been given back.
RELEASE = f"""
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    claimed_at = failed_at,
    batched = false,
    attempts = attempts - CASE WHEN batched THEN 0 ELSE 1 END
WHERE {_THESE} AND NOT {_NOT_CLAIMED}
RETURNING id, queue, delivery
"""


class Released(NamedTuple):
    """A job that was claimed, and is as before: it waits for a worker under its delivery number."""

    id: int
    queue: str
    delivery: int


def release(connection: Connection, ids: Sequence[int], tokens: Sequence[int]) -> list[Released]:
    """Give back claims of `claim_many` whose jobs have not begun, as if they had not been made.

    Returns:
        Those that were still ours, in the order of `ids`.
    """
    parameters = {"ids": id_array(ids), "tokens": id_array(tokens)}
    released = {row[0]: Released._make(row) for row in connection.execute(RELEASE, parameters)}
    return [released[job_id] for job_id in ids if job_id in released]


IS_CURRENT = "SELECT EXISTS (SELECT FROM inflight_jobs WHERE id = %s AND fencing_token = %s)"


def is_current(connection: Connection, job_id: int, token: int) -> bool:
    """Whether the job is in flight, and nobody has claimed it since the claim of this token."""
    (current,) = fetch_one(connection, IS_CURRENT, (job_id, token))
    return bool(current)


FINISH_ONCE = "SELECT drain_finish(%(id)s::bigint, %(token)s::bigint)"
# The columns are those of `drain_finish`.
FINISH_MANY = f"""
WITH done AS (
    DELETE FROM inflight_jobs WHERE {_THESE} RETURNING *
), recorded AS (
    INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, finished_at, finished_by, attempts, fencing_token, last_error, history)
    SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
        staged_at, moved_at, claimed_at, clock_timestamp(), claimed_by, attempts + batched::integer, fencing_token,
        last_error, history
    FROM done RETURNING id
)
SELECT id FROM recorded
"""
IS_FINISHED = """
SELECT EXISTS (
    SELECT FROM finished_jobs
    WHERE id = %s AND fencing_token = %s AND finished_at > now() - interval '1 day')
"""
ARE_FINISHED = """
SELECT id, true FROM finished_jobs
WHERE id = ANY (%(ids)s::bigint[]) AND finished_at > now() - interval '1 day'
UNION ALL
SELECT id, false FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[])
"""


def finish(connection: Connection, job_id: int, token: int) -> bool:
    """Record the job as finished, if `token` is still the current one.

    Returns:
        Whether the job is finished under this token. So it may be asked again when the connection broke
        before the answer came.
    """
    # Two statements: the first one touches one partition of finished_jobs, however many there are, and is enough
    # but for the rarest case.
    return finish_once(connection, job_id, token) or is_finished(connection, job_id, token)


def finish_once(connection: Connection, job_id: int, token: int) -> bool:
    """Record the job as finished.

    Returns:
        Whether this very call has finished it. Asked again, it says no.
    """
    (finished,) = fetch_one(connection, FINISH_ONCE, {"id": job_id, "token": token})
    return bool(finished)


def finish_and_commit(connection: Connection, job_id: int, token: int) -> bool:
    """Record the job as finished together with whatever the open transaction has written: both, or neither.

    Returns:
        Whether both are committed. If not, the token is stale, or has been used already: all is rolled back.

    Raises:
        psycopg.Error: All is rolled back, but for an OperationalError: then nobody knows.
    """
    try:
        # One message, for it has no parameters, of which the server executes nothing after what fails: a job of one
        # statement has three exchanges with the server instead of four, and takes 8 % less time.
        connection.execute(
            f"SELECT 1 / drain_finish({job_id:d}::bigint, {token:d}::bigint)::integer; COMMIT".encode(),
            prepare=False,
        )
    except DivisionByZero:
        connection.rollback()
        # Otherwise it was somebody's trigger that has divided.
        if is_current(connection, job_id, token):
            raise
        return False
    return True


def finish_many(connection: Connection, claims: Sequence[Claim]) -> set[int]:
    """Record many jobs as finished, each only if its token is still the current one, in one statement.

    Returns:
        Ids of those that this very call has finished. What became of the others, `finish` tells of each.

    Raises:
        psycopg.IntegrityError: The id of one is finished already; none has been recorded.
    """
    return {job_id for (job_id,) in connection.execute(FINISH_MANY, _ids_and_tokens(claims), binary=True)}


def are_finished(connection: Connection, ids: Sequence[int]) -> dict[int, bool]:
    """Whether each of these jobs has been finished within the last day, by whomever, or is in flight."""
    return dict(connection.execute(ARE_FINISHED, {"ids": id_array(ids)}).fetchall())


def is_finished(connection: Connection, job_id: int, token: int) -> bool:
    """Whether the job has been finished under this very token, within the last day."""
    (finished,) = fetch_one(connection, IS_FINISHED, (job_id, token))
    return bool(finished)


RETRY_LATER = """
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    attempts = attempts + batched::integer,
    batched = false,
    next_run_at = clock_timestamp() + make_interval(secs => %(wait)s),
    failed_at = clock_timestamp(),
    last_error = %(error)s::jsonb || pg_catalog.jsonb_build_object('at', clock_timestamp())
WHERE id = %(id)s AND fencing_token = %(token)s
"""


def retry_later(
    connection: Connection, job_id: int, token: int, wait_seconds: float, error: Mapping[str, str]
) -> bool:
    """Give the claim back and let the job wait for its next attempt; False if the token is stale."""
    parameters = {"id": job_id, "token": token, "wait": wait_seconds, "error": Jsonb(dict(error))}
    return connection.execute(RETRY_LATER, parameters).rowcount == 1


# The token stays as it is: it only ever grows. A claim that has given its lease back has had its attempt taken
# off: the statement may be sent again when its answer was lost.
DEFER = """
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    next_run_at = greatest(clock_timestamp(),
        coalesce(%(until)s::timestamptz, clock_timestamp() + make_interval(secs => %(wait)s))),
    attempts = attempts - CASE WHEN lease_expires_at IS NULL OR batched THEN 0 ELSE 1 END,
    batched = false
WHERE id = %(id)s AND fencing_token = %(token)s
"""


def defer(connection: Connection, job_id: int, token: int, when: float | datetime) -> bool:
    """Give the claim back as if it had not been, until a time or for so many seconds; False if it is stale.

    A time that has passed is now. A claim whose lease has run out counts as an attempt all the same.
    """
    until, wait = (when, 0.0) if isinstance(when, datetime) else (None, when)
    parameters = {"id": job_id, "token": token, "until": until, "wait": wait}
    return connection.execute(DEFER, parameters).rowcount == 1


# As DEFER: a claim that has given its lease back has been counted already, so the statement may be sent again when its
# answer was lost. `failed_at` stays: a deploy is no sign that the target of a queue is down.
INTERRUPT = """
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    next_run_at = clock_timestamp() + make_interval(secs => %(wait)s),
    attempts = attempts - CASE WHEN lease_expires_at IS NULL OR batched THEN 0 ELSE 1 END,
    interruptions = interruptions + CASE WHEN lease_expires_at IS NULL THEN 0 ELSE 1 END,
    batched = false,
    last_error = %(error)s::jsonb || pg_catalog.jsonb_build_object('at', clock_timestamp())
WHERE id = %(id)s AND fencing_token = %(token)s
    AND interruptions < %(most)s + CASE WHEN lease_expires_at IS NULL THEN 1 ELSE 0 END
RETURNING interruptions
"""
# Upper bound of the attempts of one job that do not count because their worker was told to stop.
MOST_INTERRUPTIONS = 20


def interrupt(
    connection: Connection, job_id: int, token: int, wait_seconds: float, error: Mapping[str, str]
) -> int | None:
    """Give the claim of an attempt back that its worker has interrupted, as if the attempt had not been.

    Returns:
        How often that has been done with this job, or None: the token is stale, or it was `MOST_INTERRUPTIONS` times
        before. Nothing has been changed then.
    """
    parameters = {
        "id": job_id,
        "token": token,
        "wait": wait_seconds,
        "error": Jsonb(dict(error)),
        "most": MOST_INTERRUPTIONS,
    }
    row = connection.execute(INTERRUPT, parameters).fetchone()
    return None if row is None else int(row[0])


BURY_CLAIMED = f"""
WITH given_up AS (
    DELETE FROM inflight_jobs WHERE id = %(id)s AND fencing_token = %(token)s RETURNING *
), buried AS (
    INSERT INTO dead_jobs ({JOB_COLUMNS}, attempts, last_error, reason, explanation)
    SELECT {JOB_COLUMNS}, attempts + batched::integer - CASE WHEN %(ran)s THEN 0 ELSE 1 END,
        coalesce(%(error)s::jsonb || pg_catalog.jsonb_build_object('at', clock_timestamp()), last_error),
        %(reason)s, %(explanation)s
    FROM given_up RETURNING id
)
SELECT EXISTS (SELECT FROM buried)
    OR EXISTS (SELECT FROM dead_jobs WHERE id = %(id)s AND fencing_token = %(token)s)
"""


def bury_claimed(
    connection: Connection,
    job_id: int,
    token: int,
    *,
    reason: str,
    explanation: str,
    error: Mapping[str, str] | None = None,
    ran: bool = True,
) -> bool:
    """Give a claimed job up.

    Args:
        connection: Any.
        job_id: The job.
        token: Of the claim.
        reason: One of those that `schema.sql` names.
        explanation: A sentence for people.
        error: What it failed of; None leaves the error of the attempt before.
        ran: This claim was an attempt, and did not only serve to bury it.

    Returns:
        Whether the job is dead under this token; so it may be asked again, as `finish`.
    """
    parameters = {
        "id": job_id,
        "token": token,
        "reason": reason,
        "explanation": explanation,
        "error": None if error is None else Jsonb(dict(error)),
        "ran": ran,
    }
    (dead,) = fetch_one(connection, BURY_CLAIMED, parameters)
    return bool(dead)


BURY_UNCLAIMABLE = f"""
WITH given_up AS (
    DELETE FROM inflight_jobs WHERE id = %(id)s AND coalesce(lease_expires_at, '-infinity') < clock_timestamp()
    RETURNING *
)
INSERT INTO dead_jobs ({JOB_COLUMNS}, attempts, last_error, reason, explanation)
SELECT {JOB_COLUMNS}, attempts, last_error, 'unreadable', %(explanation)s FROM given_up
"""


def bury_unclaimable(connection: Connection, job_id: int, explanation: str) -> bool:
    """Give up a job whose row makes each claim fail; False if it is gone, or somebody has claimed it after all."""
    parameters = {"id": job_id, "explanation": explanation}
    return connection.execute(BURY_UNCLAIMABLE, parameters).rowcount == 1


BURY_REDELIVERED = f"""
WITH given_up AS (
    DELETE FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[]) RETURNING *
)
INSERT INTO dead_jobs ({JOB_COLUMNS}, attempts, last_error, reason, explanation)
SELECT {JOB_COLUMNS}, attempts, last_error, %(reason)s, %(explanation)s FROM given_up
"""


def bury_redelivered(connection: Connection, ids: Sequence[int], *, reason: str, explanation: str) -> None:
    """Give up jobs that this very transaction has numbered, and so locked, for another delivery.

    Args:
        connection: In that transaction.
        ids: The jobs.
        reason: One of those that `schema.sql` names.
        explanation: A sentence for people.
    """
    parameters = {"ids": id_array(ids), "reason": reason, "explanation": explanation}
    connection.execute(BURY_REDELIVERED, parameters)


class Redelivered(NamedTuple):
    """A job that has been given a new delivery number, and is to be pushed under it."""

    id: int
    queue: str
    job_name: str
    timeout_seconds: int | None
    delivery: int
    previous_delivery: int


# The condition decides which rows; the order, the numbering and the new state are the same for all.
# Locked rows are passed over: a worker is just writing them, so they are in good hands. It is now() that the
# conditions ask: no index can be searched for clock_timestamp(), which changes while it is being searched.
_REDELIVER = """
WITH due AS (
    SELECT id, delivery AS previous_delivery FROM inflight_jobs
    WHERE {condition} ORDER BY {order} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), numbered AS (
    SELECT *, %(last_delivery)s + row_number() OVER (ORDER BY previous_delivery) AS number FROM due
)
UPDATE inflight_jobs AS job
SET delivery = number, lease_expires_at = NULL, next_run_at = NULL
FROM numbered WHERE job.id = numbered.id
RETURNING job.id, job.queue, job.job_name, job.timeout_seconds, job.delivery, numbered.previous_delivery
"""
REDELIVER_RETRIES = _REDELIVER.format(
    condition="queue = %(queue)s AND next_run_at <= now()", order="next_run_at"
)
REDELIVER_LEASES = _REDELIVER.format(
    condition="lease_expires_at < now() AND lease_expires_at > now() - make_interval(secs => %(within)s::float8)",
    order="lease_expires_at",
)
REDELIVER_UNCLAIMED = _REDELIVER.format(
    condition=f"{_DELIVERED} AND queue = %(queue)s AND delivery > %(above)s AND delivery <= %(up_to)s",
    order="delivery",
)


def redeliver_retries(
    connection: Connection, last_delivery: int, limit: int, *, queue: str
) -> list[Redelivered]:
    """Number anew up to `limit` jobs of a queue whose next attempt is due, from `last_delivery + 1`."""
    return _redeliver(connection, REDELIVER_RETRIES, last_delivery, limit, queue=queue)


def redeliver_leases(
    connection: Connection, last_delivery: int, limit: int, *, within: float = EVER
) -> list[Redelivered]:
    """Number anew up to `limit` jobs whose lease ran out, from `last_delivery + 1`.

    `within`: only if it ran out within these last seconds.
    """
    return _redeliver(connection, REDELIVER_LEASES, last_delivery, limit, within=within)


def redeliver_unclaimed(
    connection: Connection, last_delivery: int, limit: int, *, queue: str, above: int, up_to: int
) -> list[Redelivered]:
    """Number anew up to `limit` unclaimed jobs of a queue, delivered as `above < number <= up_to`."""
    return _redeliver(
        connection, REDELIVER_UNCLAIMED, last_delivery, limit, queue=queue, above=above, up_to=up_to
    )


def _redeliver(
    connection: Connection, statement: str, last_delivery: int, limit: int, **condition: Any
) -> list[Redelivered]:
    parameters = {"last_delivery": last_delivery, "limit": limit, **condition}
    rows = connection.execute(statement, parameters).fetchall()
    return sorted((Redelivered._make(row) for row in rows), key=lambda job: job.delivery)


def _ids_and_tokens(claims: Iterable[Claim]) -> dict[str, str]:
    # In one order everywhere, so that two who lock the same rows do not wait for each other.
    ids, tokens = [], []
    for claim in sorted(claims, key=_id_of):
        ids.append(claim.id)
        tokens.append(claim.fencing_token)
    return {"ids": id_array(ids), "tokens": id_array(tokens)}


_id_of: Callable[[Claim], int] = itemgetter(0)


def _hex(name: str) -> str:
    return name.encode(errors="surrogatepass").hex()
