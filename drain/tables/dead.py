"""Dead jobs, revived or discarded; only people do either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drain.database.postgres import Connection
from drain.tables.columns import JOB

# Bounds of the rate of a retry, in jobs a second: the slowest lets ten thousand jobs come due within four months.
SLOWEST, FASTEST = 0.001, 10_000.0

_SELECTED = """
(%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
    AND (%(queue)s::text IS NULL OR queue = %(queue)s)
    AND (%(job_name)s::text IS NULL OR job_name = %(job_name)s)
    AND (%(tag)s::text IS NULL OR tag = %(tag)s)
"""
# Columns of `staged_jobs` -> their values in a row of `dead_jobs`: fresh attempts, the same id, and a memory of what
# the job died of. An expiry that has passed would only kill the job again, so it is dropped: a person has just said
# that the job is wanted. No claim has ever held a token that `staged_jobs` refuses, so such a job gets a new one.
_REVIVED = {column: column for column in JOB.split(", ")} | {
    "matured_at": "now()",
    # What gave way to a cancelled job has been staged again.
    "stands_for": "CASE WHEN reason <> 'cancelled' THEN stands_for END",
    "expires_at": "CASE WHEN expires_at > now() THEN expires_at END",
    "fencing_token": """
    CASE WHEN fencing_token >= 0 AND fencing_token <= 1000000000000000000 THEN fencing_token ELSE 0 END""",
    "history": """
    coalesce(history, '[]') || pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object(
        'died_at', died_at, 'reason', reason, 'explanation', explanation,
        'attempts', attempts, 'last_error', last_error))""",
}
# A job whose id `staged_jobs` refuses stays dead, and does not keep other jobs from being revived.
REVIVE = f"""
WITH revived AS (
    DELETE FROM dead_jobs WHERE {_SELECTED} AND id > 0 AND id < 1000000000000000000 RETURNING *
)
INSERT INTO staged_jobs ({", ".join(_REVIVED)})
OVERRIDING SYSTEM VALUE
SELECT {", ".join(_REVIVED.values())}
FROM revived
"""
# Values of a row that is revived at a rate: each is due a moment after the one before it, by the number of its place
# among the others. An expiry that would come before is dropped, as above.
_SPREAD = _REVIVED | {
    "scheduled_at": "due.at",
    "matured_at": "NULL",
    "expires_at": "CASE WHEN expires_at > due.at THEN expires_at END",
}
REVIVE_SPREAD = f"""
WITH revived AS (
    DELETE FROM dead_jobs WHERE {_SELECTED} AND id > 0 AND id < 1000000000000000000 RETURNING *
)
INSERT INTO staged_jobs ({", ".join(_SPREAD)})
OVERRIDING SYSTEM VALUE
SELECT {", ".join(_SPREAD.values())}
FROM (SELECT *, row_number() OVER (ORDER BY id) - 1 AS place FROM revived) AS numbered, LATERAL (
    SELECT now() + pg_catalog.make_interval(secs => place / %(per_second)s::double precision) AS at) AS due
"""
DISCARD = f"DELETE FROM dead_jobs WHERE {_SELECTED}"
NOT_DEAD = """
SELECT given.id FROM pg_catalog.unnest(%s::bigint[]) AS given (id)
WHERE NOT EXISTS (SELECT FROM dead_jobs WHERE dead_jobs.id = given.id)
"""
COUNT_DEAD = f"SELECT count(*) FROM dead_jobs WHERE {_SELECTED}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of dead jobs: all given criteria have to hold; without any, all jobs are selected."""

    ids: tuple[int, ...] | None = None
    queue: str | None = None
    job_name: str | None = None
    tag: str | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the criteria as parameters of the statements on `dead_jobs`."""
        ids = None if self.ids is None else list(self.ids)
        return {"ids": ids, "queue": self.queue, "job_name": self.job_name, "tag": self.tag}


def count(connection: Connection, selection: Selection) -> int:
    """Count the dead jobs of a selection."""
    cursor = connection.execute(COUNT_DEAD, selection.parameters())
    return int(cursor.fetchall()[0][0])


def not_dead(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Find the ids among these that no dead job has."""
    return [job_id for (job_id,) in connection.execute(NOT_DEAD, (list(ids),))]


def revive(connection: Connection, selection: Selection, per_second: float | None = None) -> int:
    """Stage dead jobs again, under their old ids; returns their number. Ids out of range stay dead.

    Args:
        connection: Any.
        selection: The dead jobs.
        per_second: Rate at which the jobs come due, in the order of their ids; None lets all of them be due at once.
    """
    if per_second is None:
        return connection.execute(REVIVE, selection.parameters()).rowcount
    parameters = {**selection.parameters(), "per_second": per_second}
    return connection.execute(REVIVE_SPREAD, parameters).rowcount


def discard(connection: Connection, selection: Selection) -> int:
    """Delete dead jobs permanently; returns their number."""
    return connection.execute(DISCARD, selection.parameters()).rowcount
