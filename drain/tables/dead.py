"""Dead jobs, revived or discarded by users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import BLOCKED_AT, JOB
from drain.tables.failures import WITHOUT_EARLIER

# Jobs per second.
SLOWEST, FASTEST = 0.001, 10_000.0

_SELECTED = """
(%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s))
    AND (%(queue)s::text IS NULL OR queue = %(queue)s)
    AND (%(job_name)s::text IS NULL OR job_name = %(job_name)s)
    AND (%(tag)s::text IS NULL OR tag = %(tag)s)
    AND (%(died_by)s::timestamptz IS NULL OR died_at <= %(died_by)s)
"""
# A past expiry is dropped: a user wants the job now. Tokens that `staged_jobs` refuses were never claimed, so they are
# replaced.
_REVIVED = {column: column for column in JOB.split(", ")} | {
    "scheduled_at": f"CASE WHEN is_blocked THEN {BLOCKED_AT} ELSE scheduled_at END",
    "matured_at": "CASE WHEN NOT is_blocked THEN now() END",
    "starts_at": f"CASE WHEN is_blocked AND scheduled_at < {BLOCKED_AT} THEN scheduled_at END",
    # A cancelled job's requests were staged again.
    "stands_for": "CASE WHEN reason <> 'cancelled' THEN stands_for END",
    "expires_at": "CASE WHEN expires_at > now() THEN expires_at END",
    "fencing_token": """
    CASE WHEN fencing_token >= 0 AND fencing_token <= 1000000000000000000 THEN fencing_token ELSE 0 END""",
    "history": f"""
    coalesce(history, '[]') || pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object(
        'died_at', died_at, 'reason', reason, 'explanation', explanation,
        'attempts', attempts, 'last_error', {WITHOUT_EARLIER}))""",
}
# Scalar, so that a planner that believes a table empty cannot hash it.
_IN_SOME_TABLE = ", ".join(
    f"(SELECT true FROM {table} AS job WHERE job.id = edge.awaited_id LIMIT 1)"
    for table in ("staged_jobs", "inflight_jobs", "dead_jobs", "finished_jobs")
)
# Jobs whose ids `staged_jobs` refuses stay dead without blocking others. A job waits again for its predecessors, except
# discarded ones; the leader compares changed_xid.
_TAKE = f"""
WITH taken AS (
    DELETE FROM dead_jobs WHERE {_SELECTED} AND id > 0 AND id < 1000000000000000000 RETURNING *
), edges AS (
    UPDATE job_edges AS edge
    SET state = CASE WHEN coalesce({_IN_SOME_TABLE}) THEN 'waiting' ELSE 'met' END, changed_xid = pg_current_xact_id()
    WHERE edge.child_id = ANY (ARRAY (SELECT id FROM taken)) AND edge.state <> 'met'
    RETURNING edge.child_id, edge.state
), revived AS (
    SELECT taken.*, blocked.child_id IS NOT NULL AS is_blocked
    FROM taken LEFT JOIN (SELECT DISTINCT child_id FROM edges WHERE state = 'waiting') AS blocked ON child_id = id
)"""
REVIVE = f"""{_TAKE}
INSERT INTO staged_jobs ({", ".join(_REVIVED)})
OVERRIDING SYSTEM VALUE
SELECT {", ".join(_REVIVED.values())}
FROM revived
"""
_SPREAD = _REVIVED | {
    "scheduled_at": f"CASE WHEN is_blocked THEN {BLOCKED_AT} ELSE due.at END",
    "starts_at": "CASE WHEN is_blocked THEN due.at END",
    "matured_at": "NULL",
    "expires_at": "CASE WHEN expires_at > due.at THEN expires_at END",
}
REVIVE_SPREAD = f"""{_TAKE}
INSERT INTO staged_jobs ({", ".join(_SPREAD)})
OVERRIDING SYSTEM VALUE
SELECT {", ".join(_SPREAD.values())}
FROM (SELECT *, row_number() OVER (ORDER BY id) - 1 AS place FROM revived) AS numbered, LATERAL (
    SELECT coalesce(%(first_at)s::timestamptz, now())
        + pg_catalog.make_interval(secs => place / %(per_second)s::double precision) AS at) AS due
"""
# The leader compares changed edges.
DISCARD = f"""
WITH gone AS (DELETE FROM dead_jobs WHERE {_SELECTED} RETURNING id), changed AS (
    UPDATE job_edges SET changed_xid = pg_current_xact_id()
    WHERE awaited_id = ANY (ARRAY (SELECT id FROM gone)) AND state = 'waiting'
)
SELECT count(*) FROM gone
"""
NOT_DEAD = """
SELECT given.id FROM pg_catalog.unnest(%s::bigint[]) AS given (id)
WHERE NOT EXISTS (SELECT FROM dead_jobs WHERE dead_jobs.id = given.id)
"""
COUNT_DEAD = f"SELECT count(*) FROM dead_jobs WHERE {_SELECTED}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Dead jobs that meet all given criteria; without any, all.

    Attributes:
        died_by: Latest time of death, which leaves out jobs that died again.
    """

    ids: tuple[int, ...] | None = None
    queue: str | None = None
    job_name: str | None = None
    tag: str | None = None
    died_by: datetime | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the statement parameters."""
        ids = None if self.ids is None else list(self.ids)
        return {
            "ids": ids,
            "queue": self.queue,
            "job_name": self.job_name,
            "tag": self.tag,
            "died_by": self.died_by,
        }


def count(connection: Connection, selection: Selection) -> int:
    """Count selected dead jobs."""
    cursor = connection.execute(COUNT_DEAD, selection.parameters())
    return int(cursor.fetchall()[0][0])


def not_dead(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Return the ids that are not dead."""
    return [job_id for (job_id,) in connection.execute(NOT_DEAD, (list(ids),))]


def revive(
    connection: Connection,
    selection: Selection,
    per_second: float | None = None,
    first_at: datetime | None = None,
) -> int:
    """Stage dead jobs again under their ids, blocked while predecessors have not finished; return how many.

    Args:
        per_second: Rate at which they come due, in id order.
        first_at: When the first one comes due, with a rate; by default now.
    """
    if per_second is None:
        return connection.execute(REVIVE, selection.parameters()).rowcount
    parameters = {**selection.parameters(), "per_second": per_second, "first_at": first_at}
    return connection.execute(REVIVE_SPREAD, parameters).rowcount


def discard(connection: Connection, selection: Selection) -> int:
    """Delete dead jobs; return how many."""
    (count,) = fetch_one(connection, DISCARD, selection.parameters())
    return int(count)
