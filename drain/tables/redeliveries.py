"""Jobs in flight get a new delivery number, or die if RQ gave them up.

Paused jobs are called back if delivered, so that no claim finds them, and not redelivered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from drain.database.postgres import Connection
from drain.tables.columns import DEAD, DELIVERED, JOB, id_array
from drain.tables.pauses import IS_PAUSED

CENTURY_SECONDS = 3.2e9


class Redelivered(NamedTuple):
    """Job with a new delivery number."""

    id: int
    queue: str
    job_name: str
    timeout_seconds: int | None
    delivery: int
    previous_delivery: int
    claims: int


# Skips locked rows. now(), since an index cannot be searched for clock_timestamp().
_REDELIVER = """
WITH due AS (
    SELECT id, delivery AS previous_delivery FROM inflight_jobs AS job
    WHERE {condition} {but_paused} ORDER BY {order} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), numbered AS (
    SELECT *, %(last_delivery)s + row_number() OVER (ORDER BY previous_delivery) AS number FROM due
)
UPDATE inflight_jobs AS job
SET delivery = number, lease_expires_at = NULL, next_run_at = NULL
FROM numbered WHERE job.id = numbered.id
RETURNING job.id, job.queue, job.job_name, job.timeout_seconds, job.delivery, numbered.previous_delivery,
    job.fencing_token
"""
_RETRIES = {"condition": "queue = %(queue)s AND next_run_at <= now()", "order": "next_run_at"}
# The job may have moved or been paused since.
_CHOSEN = {
    "condition": "id = ANY (%(ids)s::bigint[]) AND coalesce(next_run_at, 'infinity') <= now() AND queue = %(queue)s",
    "order": "id",
}
_LEASE_IS_OVER = (
    "lease_expires_at < now() AND lease_expires_at > now() - make_interval(secs => %(within)s::float8)"
)
_LEASES = {"condition": f"{_LEASE_IS_OVER} AND queue <> ALL (%(but)s::text[])", "order": "lease_expires_at"}
_UNCLAIMED = {
    "condition": f"{DELIVERED} AND queue = %(queue)s AND delivery > %(above)s AND delivery <= %(up_to)s",
    "order": "delivery",
}
REDELIVER_RETRIES, REDELIVER_CHOSEN, REDELIVER_LEASES, REDELIVER_UNCLAIMED = (
    _REDELIVER.format(**which, but_paused="") for which in (_RETRIES, _CHOSEN, _LEASES, _UNCLAIMED)
)
# Used only while pauses exist.
(
    REDELIVER_RETRIES_BUT_PAUSED,
    REDELIVER_CHOSEN_BUT_PAUSED,
    REDELIVER_LEASES_BUT_PAUSED,
    REDELIVER_UNCLAIMED_BUT_PAUSED,
) = (
    _REDELIVER.format(**which, but_paused=f"AND NOT {IS_PAUSED}")
    for which in (_RETRIES, _CHOSEN, _LEASES, _UNCLAIMED)
)


def redeliver_retries(
    connection: Connection, last_delivery: int, limit: int, *, queue: str, but_paused: bool = False
) -> list[Redelivered]:
    """Renumber due retries from `last_delivery + 1`."""
    statement = REDELIVER_RETRIES_BUT_PAUSED if but_paused else REDELIVER_RETRIES
    return _redeliver(connection, statement, last_delivery, limit, queue=queue)


def redeliver_chosen(
    connection: Connection, last_delivery: int, ids: Collection[int], *, queue: str, but_paused: bool = False
) -> list[Redelivered]:
    """Renumber these jobs if still due in this queue."""
    statement = REDELIVER_CHOSEN_BUT_PAUSED if but_paused else REDELIVER_CHOSEN
    return _redeliver(connection, statement, last_delivery, len(ids), ids=id_array(ids), queue=queue)


def redeliver_leases(
    connection: Connection,
    last_delivery: int,
    limit: int,
    *,
    within: float = CENTURY_SECONDS,
    but: Collection[str] = (),
    but_paused: bool = False,
) -> list[Redelivered]:
    """Renumber jobs with leases expired `within` seconds, except of queues `but`."""
    statement = REDELIVER_LEASES_BUT_PAUSED if but_paused else REDELIVER_LEASES
    return _redeliver(connection, statement, last_delivery, limit, within=within, but=list(but))


def redeliver_unclaimed(
    connection: Connection,
    last_delivery: int,
    limit: int,
    *,
    queue: str,
    above: int,
    up_to: int,
    but_paused: bool = False,
) -> list[Redelivered]:
    """Renumber unclaimed jobs with numbers in (`above`, `up_to`]."""
    statement = REDELIVER_UNCLAIMED_BUT_PAUSED if but_paused else REDELIVER_UNCLAIMED
    return _redeliver(connection, statement, last_delivery, limit, queue=queue, above=above, up_to=up_to)


def _redeliver(
    connection: Connection, statement: str, last_delivery: int, limit: int, **condition: Any
) -> list[Redelivered]:
    parameters = {"last_delivery": last_delivery, "limit": limit, **condition}
    rows = connection.execute(statement, parameters).fetchall()
    return sorted((Redelivered._make(row) for row in rows), key=lambda job: job.delivery)


# Due again once no pause applies. Rows locked by a claim are skipped; they start.
_CALL_BACK = """
WITH paused AS (
    SELECT id FROM inflight_jobs AS job
    WHERE {condition} AND {is_paused}
    ORDER BY {order} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE inflight_jobs AS job SET lease_expires_at = NULL, next_run_at = now()
FROM paused WHERE job.id = paused.id
RETURNING job.id
"""
CALL_BACK = _CALL_BACK.format(condition=DELIVERED, is_paused=IS_PAUSED, order="queue, delivery")
CALL_BACK_OF_QUEUES = _CALL_BACK.format(
    condition=f"{DELIVERED} AND queue = ANY (%(queues)s::text[])",
    is_paused=IS_PAUSED,
    order="queue, delivery",
)
_UP_TO = f"{DELIVERED} AND queue = ANY (%(queues)s::text[]) AND delivery <= %(up_to)s::bigint"
CALL_BACK_ALL = _CALL_BACK.format(condition=_UP_TO, is_paused="true", order="queue, delivery")
STILL_DELIVERED = f"SELECT DISTINCT queue FROM inflight_jobs WHERE {_UP_TO}"
CALL_BACK_LEASES = _CALL_BACK.format(
    condition=_LEASE_IS_OVER,
    is_paused=f"(queue = ANY (%(queues)s::text[]) OR {IS_PAUSED})",
    order="lease_expires_at",
)


def call_back(connection: Connection, limit: int, queues: Collection[str] | None) -> int:
    """Call back unclaimed, paused jobs, at read committed.

    `queues` are those that pauses name; None if one applies to all.
    """
    statement = CALL_BACK if queues is None else CALL_BACK_OF_QUEUES
    return connection.execute(statement, {"limit": limit, "queues": list(queues or ())}).rowcount


def call_back_all(connection: Connection, limit: int, queues: Collection[str], up_to: int) -> int:
    """Call back unclaimed jobs with numbers up to this one."""
    parameters = {"limit": limit, "queues": list(queues), "up_to": up_to}
    return connection.execute(CALL_BACK_ALL, parameters).rowcount


def still_delivered(connection: Connection, queues: Collection[str], up_to: int) -> set[str]:
    """Return the queues that `call_back_all` left, since rows were locked."""
    rows = connection.execute(STILL_DELIVERED, {"queues": list(queues), "up_to": up_to})
    return {queue for (queue,) in rows}


def call_back_leases(
    connection: Connection, limit: int, *, queues: Collection[str] = (), within: float = CENTURY_SECONDS
) -> list[int]:
    """Call back jobs with expired leases, paused or of `queues`; return ids."""
    parameters = {"limit": limit, "queues": list(queues), "within": within}
    rows = connection.execute(CALL_BACK_LEASES, parameters)
    return [job_id for (job_id,) in rows]


BURY_REDELIVERED = f"""
WITH given_up AS (
    DELETE FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[]) RETURNING *
)
INSERT INTO dead_jobs ({DEAD})
SELECT {JOB}, attempts, last_error, %(reason)s, %(explanation)s FROM given_up
"""


def bury_redelivered(connection: Connection, ids: Sequence[int], *, reason: str, explanation: str) -> None:
    """Bury jobs that this transaction has renumbered, and so locked."""
    parameters = {"ids": id_array(ids), "reason": reason, "explanation": explanation}
    connection.execute(BURY_REDELIVERED, parameters)
