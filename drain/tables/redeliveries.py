"""Redeliveries: jobs of `inflight_jobs` get a new delivery number, or are given up because RQ has given them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from drain.database.postgres import Connection
from drain.tables.columns import DEAD, DELIVERED, JOB, id_array

# A hundred years, for no bound.
CENTURY_SECONDS = 3.2e9


class Redelivered(NamedTuple):
    """Job with a new delivery number, under which the leader pushes it."""

    id: int
    queue: str
    job_name: str
    timeout_seconds: int | None
    delivery: int
    previous_delivery: int


# Statement of all redeliveries: they differ in the condition for rows, and in their order. Locked rows are passed over,
# since a worker is just writing them. Conditions use now(): no index can be searched for clock_timestamp(), which
# changes during the search.
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
    condition=f"{DELIVERED} AND queue = %(queue)s AND delivery > %(above)s AND delivery <= %(up_to)s",
    order="delivery",
)


def redeliver_retries(
    connection: Connection, last_delivery: int, limit: int, *, queue: str
) -> list[Redelivered]:
    """Renumber up to `limit` jobs of a queue whose next attempt is due, from `last_delivery + 1` on."""
    return _redeliver(connection, REDELIVER_RETRIES, last_delivery, limit, queue=queue)


def redeliver_leases(
    connection: Connection, last_delivery: int, limit: int, *, within: float = CENTURY_SECONDS
) -> list[Redelivered]:
    """Renumber up to `limit` jobs whose lease ran out within these last seconds, from `last_delivery + 1` on."""
    return _redeliver(connection, REDELIVER_LEASES, last_delivery, limit, within=within)


def redeliver_unclaimed(
    connection: Connection, last_delivery: int, limit: int, *, queue: str, above: int, up_to: int
) -> list[Redelivered]:
    """Renumber up to `limit` unclaimed jobs of a queue, delivered as `above < number <= up_to`."""
    return _redeliver(
        connection, REDELIVER_UNCLAIMED, last_delivery, limit, queue=queue, above=above, up_to=up_to
    )


def _redeliver(
    connection: Connection, statement: str, last_delivery: int, limit: int, **condition: Any
) -> list[Redelivered]:
    parameters = {"last_delivery": last_delivery, "limit": limit, **condition}
    rows = connection.execute(statement, parameters).fetchall()
    return sorted((Redelivered._make(row) for row in rows), key=lambda job: job.delivery)


BURY_REDELIVERED = f"""
WITH given_up AS (
    DELETE FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[]) RETURNING *
)
INSERT INTO dead_jobs ({DEAD})
SELECT {JOB}, attempts, last_error, %(reason)s, %(explanation)s FROM given_up
"""


def bury_redelivered(connection: Connection, ids: Sequence[int], *, reason: str, explanation: str) -> None:
    """Give up jobs that this very transaction has renumbered, and so locked.

    Args:
        connection: In that transaction.
        ids: Ids of the jobs.
        reason: One of the reasons that `schema.sql` names.
        explanation: Sentence for people.
    """
    parameters = {"ids": id_array(ids), "reason": reason, "explanation": explanation}
    connection.execute(BURY_REDELIVERED, parameters)
