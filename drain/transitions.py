"""Every statement that moves a job from one table to the next, in the order of a job's life.

Which table a row is in is its state; this module alone writes the four tables. Each function is one
statement on a psycopg connection. Whether it runs in a transaction, and at which isolation level, is
for the caller to say, and each docstring tells what it relies on.

    insert_statement   the application    ──► staged_jobs
    mature             staged_jobs        (its time has come)
    take               staged_jobs        (read what is due)
    move               staged_jobs        ──► inflight_jobs
    forward            staged_jobs        ──► Redis alone
    bury_staged        staged_jobs        ──► dead_jobs
    claim              inflight_jobs      (lease and token)
    finish             inflight_jobs      ──► finished_jobs
    retry_later        inflight_jobs      (waits for its next attempt)
    bury_claimed       inflight_jobs      ──► dead_jobs
    redeliver_*        inflight_jobs      (a new delivery number)
    revive, discard    dead_jobs          ──► staged_jobs, or nowhere
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from drain.errors import SchemaError

Connection = psycopg.Connection[Any]

# What a job brings along from table to table.
_JOB = (
    "id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag, "
    "max_attempts, timeout_seconds, context, staged_at, fencing_token, history"
)
_READY = "(scheduled_at <= staged_at OR matured_at IS NOT NULL)"
_DELIVERED = "lease_expires_at IS NULL AND next_run_at IS NULL"


# -- staged_jobs


def insert_statement(columns: Sequence[str], placeholder: Callable[[str], str]) -> str:
    """INSERT of one row into `staged_jobs`; columns that are left out get the schema's defaults.

    Args:
        columns: Names of the columns that are given; never the caller's input.
        placeholder: Spells the placeholder of a column in the parameter style of the driver.
    """
    values = ", ".join(_value(column, placeholder) for column in columns)
    return f"INSERT INTO staged_jobs ({', '.join(columns)}) VALUES ({values}) RETURNING id"


def insert_many_statement(columns: Sequence[str], placeholder: Callable[[str], str]) -> str:
    """INSERT of one row for each element of the JSON array `arguments`, as `[args, kwargs]`.

    All rows share the given columns. The ids come back in the order of the elements.
    """
    shared = "".join(f", {column}" for column in columns)
    values = "".join(f", {_value(column, placeholder)}" for column in columns)
    elements = f"jsonb_array_elements(CAST({placeholder('arguments')} AS jsonb))"
    return (
        f"INSERT INTO staged_jobs (job_args, job_kwargs{shared}) "
        f"SELECT item -> 0, item -> 1{values} "
        f"FROM {elements} WITH ORDINALITY AS given (item, position) ORDER BY position RETURNING id"
    )


def _value(column: str, placeholder: Callable[[str], str]) -> str:
    types = {
        "job_args": "jsonb",
        "job_kwargs": "jsonb",
        "context": "jsonb",
        "scheduled_at": "timestamptz",
        "expires_at": "timestamptz",
        "priority": "integer",
        "max_attempts": "integer",
        "timeout_seconds": "integer",
    }
    return f"CAST({placeholder(column)} AS {types.get(column, 'text')})"


MATURE = """
UPDATE staged_jobs SET matured_at = now()
WHERE id = ANY (ARRAY (
    SELECT id FROM staged_jobs
    WHERE scheduled_at > staged_at AND matured_at IS NULL AND scheduled_at <= now()
    ORDER BY scheduled_at LIMIT %s FOR UPDATE SKIP LOCKED))
"""


def mature(connection: Connection, limit: int) -> int:
    """Let up to `limit` scheduled rows whose time has come take part in `take`; returns how many."""
    return connection.execute(MATURE, (limit,)).rowcount


class Taken(NamedTuple):
    """What the enqueuer has to know of a row that is due, to move and push it."""

    id: int
    queue: str
    job_name: str
    timeout_seconds: int | None
    expired: bool


# A batch is a list of ids, and each statement after this one names exactly these. Never `id <= last`:
# a lower id whose transaction commits later would be deleted without ever having been seen.
TAKE = f"""
SELECT id, queue, job_name, timeout_seconds, coalesce(expires_at <= now(), false)
FROM staged_jobs
WHERE {_READY} AND id <> ALL (%s)
ORDER BY priority, id LIMIT %s
"""


def take(
    connection: Connection, limit: int, *, leave: Sequence[int] = (), skip_locked: bool = False
) -> list[Taken]:
    """Read up to `limit` due rows in the order of `priority, id`.

    To be called in a repeatable-read transaction, so that the statements which follow see the same
    rows, and fail rather than wait for news when one of them has been changed by somebody else.

    Args:
        connection: The leader's, with a transaction open.
        limit: The most rows to take.
        leave: Ids to pass over.
        skip_locked: Lock the rows, passing over those that another session has locked. Costs a write
            for each row, so it is for the case that a batch ran into such a lock.
    """
    lock = "FOR UPDATE SKIP LOCKED" if skip_locked else ""
    rows = connection.execute(TAKE + lock, (list(leave), limit), binary=True)
    return [Taken._make(row) for row in rows.fetchall()]


MOVE = f"""
WITH taken AS (
    DELETE FROM staged_jobs WHERE id = ANY (%(ids)s) RETURNING {_JOB}
), numbered AS (
    SELECT * FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS batch (id, position)
)
INSERT INTO inflight_jobs ({_JOB}, delivery)
SELECT {_JOB}, %(last_delivery)s + position FROM taken JOIN numbered USING (id)
"""


def move(connection: Connection, ids: Sequence[int], last_delivery: int) -> None:
    """Move exactly these rows to `inflight_jobs`, numbered from `last_delivery + 1` in the given order."""
    connection.execute(MOVE, {"ids": ids, "last_delivery": last_delivery})


class Forwardable(NamedTuple):
    """All of a row that is to leave for Redis in forward mode; the arguments as JSON texts."""

    id: int
    queue: str
    job_name: str
    job_args: str
    job_kwargs: str
    timeout_seconds: int | None


READ_FORWARDABLE = """
SELECT id, queue, job_name, job_args::text, job_kwargs::text, timeout_seconds
FROM staged_jobs WHERE id = ANY (%s)
"""
FORWARD = "DELETE FROM staged_jobs WHERE id = ANY (%s)"


def read_forwardable(connection: Connection, ids: Sequence[int]) -> list[Forwardable]:
    """Read exactly these staged rows whole, in the given order."""
    cursor = connection.execute(READ_FORWARDABLE, (list(ids),))
    rows = {row[0]: Forwardable._make(row) for row in cursor.fetchall()}
    return [rows[id_] for id_ in ids]


def forward(connection: Connection, ids: Sequence[int]) -> None:
    """Delete exactly these staged rows.

    The caller pushes them before it commits: a crash in between leaves them where they were.
    """
    connection.execute(FORWARD, (list(ids),))


BURY_STAGED = f"""
WITH given_up AS (DELETE FROM staged_jobs WHERE id = ANY (%(ids)s) RETURNING {_JOB})
INSERT INTO dead_jobs ({_JOB}, reason, explanation)
SELECT {_JOB}, %(reason)s, %(explanation)s FROM given_up
"""


def bury_staged(connection: Connection, ids: Sequence[int], reason: str, explanation: str) -> int:
    """Move exactly these staged rows to `dead_jobs`; returns how many there were."""
    parameters = {"ids": list(ids), "reason": reason, "explanation": explanation}
    return connection.execute(BURY_STAGED, parameters).rowcount


# -- inflight_jobs


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is ours for as long as the lease holds.

    Attributes:
        job_args, job_kwargs: JSON texts, as they were staged.
        attempts: Claims of this job so far, this one included.
        max_attempts: The row's own limit, or else the registration's; 0 for none.
        timeout_seconds: The row's own, or else the registration's.
        fencing_token: Only this token can finish the job, until somebody claims it anew.
        expired: The job's `expires_at` has passed: it is ours to bury, not to run.
    """

    id: int
    job_name: str
    job_args: str
    job_kwargs: str
    queue: str
    tag: str | None
    context: dict[str, Any] | None
    attempts: int
    max_attempts: int
    timeout_seconds: int
    fencing_token: int
    lease_expires_at: datetime
    expired: bool


# One statement: a claim takes the lease, by the database's clock, and raises the token, or does nothing.
# The registrations travel along as {name: [max_attempts, timeout_seconds]}, because which of them
# applies is known only once the row has been found.
CLAIM = """
WITH found AS (
    SELECT id,
        coalesce(max_attempts, (%(options)s -> job_name ->> 0)::integer, %(max_attempts)s) AS max_attempts,
        coalesce(timeout_seconds, (%(options)s -> job_name ->> 1)::integer, %(timeout_seconds)s)
            AS timeout_seconds
    FROM inflight_jobs WHERE id = %(id)s
)
UPDATE inflight_jobs AS job SET
    fencing_token = job.fencing_token + 1,
    attempts = job.attempts + 1,
    max_attempts = found.max_attempts,
    timeout_seconds = found.timeout_seconds,
    claimed_at = clock_timestamp(),
    claimed_by = %(worker)s,
    lease_expires_at = clock_timestamp() + make_interval(secs => found.timeout_seconds + %(margin)s),
    next_run_at = NULL
FROM found
WHERE job.id = found.id
    AND (job.lease_expires_at IS NULL OR job.lease_expires_at < clock_timestamp())
    AND (job.next_run_at IS NULL OR job.next_run_at <= clock_timestamp())
    AND (found.max_attempts = 0 OR job.attempts < found.max_attempts)
RETURNING job.id, job.job_name, job.job_args::text, job.job_kwargs::text, job.queue, job.tag, job.context,
    job.attempts, job.max_attempts, job.timeout_seconds, job.fencing_token, job.lease_expires_at,
    coalesce(job.expires_at <= clock_timestamp(), false) AS expired
"""


def claim(
    connection: Connection,
    job_id: int,
    *,
    worker: str,
    options: Mapping[str, Sequence[int]],
    max_attempts: int,
    timeout_seconds: int,
    margin: float,
) -> Claim | None:
    """Claim one job, or be refused: it is claimed already, not due, finished, dead or unknown.

    Args:
        connection: In autocommit mode: the claim must be durable before the job runs.
        job_id: The job.
        worker: Who claims, for people to read.
        options: `(max_attempts, timeout_seconds)` of each registered name.
        max_attempts: For names that are not in `options`.
        timeout_seconds: For names that are not in `options`.
        margin: Seconds by which the lease outlasts the timeout.
    """
    parameters = {
        "id": job_id,
        "worker": worker,
        "options": Jsonb({name: list(values) for name, values in options.items()}),
        "max_attempts": max_attempts,
        "timeout_seconds": timeout_seconds,
        "margin": margin,
    }
    with connection.cursor(row_factory=class_row(Claim)) as cursor:
        return cursor.execute(CLAIM, parameters).fetchone()


FINISH = """
WITH finished AS (
    DELETE FROM inflight_jobs WHERE id = %(id)s AND fencing_token = %(token)s RETURNING *
)
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
    staged_at, moved_at, claimed_at, finished_at, finished_by, attempts, fencing_token, last_error, history)
SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context,
    staged_at, moved_at, claimed_at, clock_timestamp(), claimed_by, attempts, fencing_token, last_error, history
FROM finished
"""


def finish(connection: Connection, job_id: int, token: int) -> bool:
    """Record the job as finished, if `token` is still the current one; False if it is not."""
    return connection.execute(FINISH, {"id": job_id, "token": token}).rowcount == 1


RETRY_LATER = """
UPDATE inflight_jobs SET
    lease_expires_at = NULL,
    next_run_at = clock_timestamp() + make_interval(secs => %(wait)s),
    last_error = %(error)s::jsonb || jsonb_build_object('at', clock_timestamp())
WHERE id = %(id)s AND fencing_token = %(token)s
"""


def retry_later(
    connection: Connection, job_id: int, token: int, wait_seconds: float, error: Mapping[str, str]
) -> bool:
    """Give the claim back and let the job wait for its next attempt; False if the token is stale."""
    parameters = {"id": job_id, "token": token, "wait": wait_seconds, "error": Jsonb(dict(error))}
    return connection.execute(RETRY_LATER, parameters).rowcount == 1


_BURY_INFLIGHT = f"""
INSERT INTO dead_jobs ({_JOB}, attempts, last_error, reason, explanation)
SELECT {_JOB}, attempts,
    coalesce(%(error)s::jsonb || jsonb_build_object('at', clock_timestamp()), last_error),
    %(reason)s, %(explanation)s
FROM given_up
"""
BURY_CLAIMED = f"""
WITH given_up AS (
    DELETE FROM inflight_jobs WHERE id = %(id)s AND fencing_token = %(token)s RETURNING *
) {_BURY_INFLIGHT}
"""


def bury_claimed(
    connection: Connection,
    job_id: int,
    token: int,
    *,
    reason: str,
    explanation: str,
    error: Mapping[str, str] | None = None,
) -> bool:
    """Give a claimed job up; False if the token is stale."""
    parameters = {
        "id": job_id,
        "token": token,
        "reason": reason,
        "explanation": explanation,
        "error": None if error is None else Jsonb(dict(error)),
    }
    return connection.execute(BURY_CLAIMED, parameters).rowcount == 1


BURY_EXHAUSTED = f"""
WITH given_up AS (
    DELETE FROM inflight_jobs WHERE id = ANY (ARRAY (
        SELECT id FROM inflight_jobs
        WHERE lease_expires_at < clock_timestamp() AND max_attempts > 0 AND attempts >= max_attempts
        ORDER BY lease_expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING *
) {_BURY_INFLIGHT}
"""


def bury_exhausted(connection: Connection, limit: int) -> int:
    """Give up jobs whose lease ran out on their last attempt; returns how many."""
    parameters = {
        "limit": limit,
        "error": None,
        "reason": "lease",
        "explanation": "its worker died or stalled on the last attempt, and the lease ran out",
    }
    return connection.execute(BURY_EXHAUSTED, parameters).rowcount


class Redelivered(NamedTuple):
    """A job that has been given a new delivery number, and is to be pushed under it."""

    id: int
    queue: str
    job_name: str
    timeout_seconds: int | None
    delivery: int
    previous_delivery: int


# The condition decides which rows; the order, the numbering and the new state are the same for all.
# Locked rows are passed over: a worker is just writing them, so they are in good hands.
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
REDELIVER_RETRIES = _REDELIVER.format(condition="next_run_at <= clock_timestamp()", order="next_run_at")
REDELIVER_LEASES = _REDELIVER.format(
    condition=("lease_expires_at < clock_timestamp() AND (max_attempts = 0 OR attempts < max_attempts)"),
    order="lease_expires_at",
)
REDELIVER_UNCLAIMED = _REDELIVER.format(
    condition=f"{_DELIVERED} AND queue = %(queue)s AND delivery > %(above)s AND delivery <= %(up_to)s",
    order="delivery",
)


def redeliver_retries(connection: Connection, last_delivery: int, limit: int) -> list[Redelivered]:
    """Number anew up to `limit` jobs whose next attempt is due, from `last_delivery + 1`."""
    return _redeliver(connection, REDELIVER_RETRIES, last_delivery, limit)


def redeliver_leases(connection: Connection, last_delivery: int, limit: int) -> list[Redelivered]:
    """Number anew up to `limit` jobs whose lease ran out, from `last_delivery + 1`."""
    return _redeliver(connection, REDELIVER_LEASES, last_delivery, limit)


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


# -- dead_jobs


_SELECTED = """
(%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
    AND (%(queue)s::text IS NULL OR queue = %(queue)s)
    AND (%(job_name)s::text IS NULL OR job_name = %(job_name)s)
    AND (%(tag)s::text IS NULL OR tag = %(tag)s)
"""
# Fresh attempts, the same id, and a memory of what it died of. An expiry that has passed would only
# kill it again, so it is dropped: a person has just said that the job is wanted.
REVIVE = f"""
WITH revived AS (DELETE FROM dead_jobs WHERE {_SELECTED} RETURNING *)
INSERT INTO staged_jobs (id, job_name, job_args, job_kwargs, queue, priority, tag,
    max_attempts, timeout_seconds, context, staged_at, scheduled_at, matured_at, expires_at,
    fencing_token, history)
OVERRIDING SYSTEM VALUE
SELECT id, job_name, job_args, job_kwargs, queue, priority, tag,
    max_attempts, timeout_seconds, context, staged_at, scheduled_at, now(),
    CASE WHEN expires_at > now() THEN expires_at END, fencing_token,
    coalesce(history, '[]') || jsonb_build_array(jsonb_build_object(
        'died_at', died_at, 'reason', reason, 'explanation', explanation,
        'attempts', attempts, 'last_error', last_error))
FROM revived
"""
DISCARD = f"DELETE FROM dead_jobs WHERE {_SELECTED}"
COUNT_DEAD = f"SELECT count(*) FROM dead_jobs WHERE {_SELECTED}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead jobs; all of the given criteria have to hold, and none given means all."""

    ids: tuple[int, ...] | None = None
    queue: str | None = None
    job_name: str | None = None
    tag: str | None = None

    def parameters(self) -> dict[str, Any]:
        """As parameters of the statements on `dead_jobs`."""
        ids = None if self.ids is None else list(self.ids)
        return {"ids": ids, "queue": self.queue, "job_name": self.job_name, "tag": self.tag}


def count_dead(connection: Connection, selection: Selection) -> int:
    """How many dead jobs the selection names."""
    cursor = connection.execute(COUNT_DEAD, selection.parameters())
    return int(cursor.fetchall()[0][0])


def revive(connection: Connection, selection: Selection) -> int:
    """Stage dead jobs anew, due at once, under their old ids; returns how many."""
    return connection.execute(REVIVE, selection.parameters()).rowcount


def discard(connection: Connection, selection: Selection) -> int:
    """Delete dead jobs for good; returns how many."""
    return connection.execute(DISCARD, selection.parameters()).rowcount


# -- drain_state


class State(NamedTuple):
    """What a leader has to know of those before it."""

    last_delivery: int
    pushed_up_to: int


def lead(connection: Connection, leader: str) -> State:
    """Write down who leads from now on; returns where the last leader got to."""
    statement = (
        "UPDATE drain_state SET leader = %s, leader_since = clock_timestamp() "
        "RETURNING last_delivery, pushed_up_to"
    )
    row: tuple[int, int] | None = connection.execute(statement, (leader,)).fetchone()
    if row is None:
        raise SchemaError("drain_state has lost its only row; run `drain init`")
    return State._make(row)


def record_progress(connection: Connection, last_delivery: int, pushed_up_to: int) -> None:
    """Write down the numbers handed out, and the number up to which all have been pushed."""
    connection.execute(
        "UPDATE drain_state SET last_delivery = %s, pushed_up_to = %s",
        (last_delivery, pushed_up_to),
    )
