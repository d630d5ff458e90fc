"""Dead jobs, revived or discarded by users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import BLOCKED_AT, IS_BLOCKED, JOB
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
# Jobs that undo a dead job, or the flow that it is part of, or ends. After its undo, only a job can be retried.
_UNDOING = """
SELECT undone_by AS id, job_id AS part, NULL::bigint AS flow FROM job_steps
WHERE job_id = dead.id AND undone_by IS NOT NULL
UNION ALL SELECT own.undone_by, edge.parent_id, own.id FROM job_edges AS edge, LATERAL (
    SELECT flows.id, undone_by FROM flows WHERE flows.id = edge.child_id AND undone_by IS NOT NULL OFFSET 0) AS own
WHERE edge.awaited_id = dead.id AND edge.awaited_id IS NOT NULL AND edge.state = 'waiting' AND edge.on_failure = 'hold'
UNION ALL SELECT undone_by, NULL, flows.id FROM flows WHERE flows.id = dead.id AND undone_by IS NOT NULL
UNION ALL SELECT undone_by, part, flow FROM lost WHERE lost.id = dead.id"""
# The end of a cancelled flow no longer waits for its members, so no index finds it by these.
_CHOSEN = f"""
selected AS MATERIALIZED (
    SELECT ctid AS place, id FROM dead_jobs WHERE {_SELECTED} AND id > 0 AND id < 1000000000000000000
), lost AS MATERIALIZED (
    SELECT edge.awaited_id AS id, edge.parent_id AS part, own.id AS flow, own.undone_by FROM flows AS own, LATERAL (
        SELECT awaited_id, parent_id FROM job_edges
        WHERE child_id = own.id AND state = 'idle' AND on_failure = 'hold'
            AND (awaited_id IN (SELECT id FROM selected)) IS TRUE
        OFFSET 0) AS edge
    WHERE own.undone_by IS NOT NULL AND (SELECT true FROM dead_jobs AS job WHERE job.id = own.id)
)"""
_UNFINISHED = ", ".join(
    f"(SELECT true FROM {table} AS job WHERE job.id = undo.id LIMIT 1)"
    for table in ("staged_jobs", "inflight_jobs", "dead_jobs")
)
# The undo must not have begun, nor have counted this death, or that of another member. A flow's one may be discarded.
# One that another session retries is locked. Jobs that join the flow share the lock, so none is waited for.
_MAY_BE_RETRIED = f"""
CASE WHEN {{is_blocked}} OR (SELECT true FROM dead_jobs AS job WHERE job.id = undo.id {{undo_lock}})
    THEN coalesce((SELECT pg_catalog.bool_and(state <> 'met') FROM (
        SELECT state FROM job_edges
        WHERE child_id = undo.id AND parent_id IN (undo.part, undo.flow) {{lock}}) AS edge), false)
    ELSE coalesce({_UNFINISHED}) IS NULL AND (undo.flow IS NULL OR (
        SELECT state FROM job_edges WHERE child_id = undo.id AND parent_id = undo.flow) = 'idle') IS TRUE END"""
_MAY_BE_RETRIED_LOCKED = _MAY_BE_RETRIED.format(
    is_blocked="undo.id = ANY (ARRAY (SELECT id FROM held))",
    undo_lock="FOR KEY SHARE SKIP LOCKED",
    lock="FOR UPDATE",
)
# A retry leaves jobs whose undo job is locked. Touching it makes the leader look at the outcome again before it
# unblocks it. Behind this lock, the edges are final.
_NOT_UNDONE = f"""
{_CHOSEN}, held AS MATERIALIZED (
    SELECT blocked.* FROM (
        SELECT DISTINCT undo.id FROM selected AS dead, LATERAL ({_UNDOING}) AS undo) AS undo, LATERAL (
        SELECT job.ctid, job.id FROM staged_jobs_scheduled AS job
        WHERE job.id = undo.id AND ({IS_BLOCKED}) IS TRUE FOR UPDATE SKIP LOCKED) AS blocked
), changed AS (
    UPDATE staged_jobs_scheduled SET starts_at = starts_at WHERE ctid = ANY (ARRAY (SELECT ctid FROM held))
), chosen AS MATERIALIZED (
    SELECT place FROM selected AS dead WHERE coalesce((SELECT pg_catalog.bool_and(
        {_MAY_BE_RETRIED_LOCKED})
        FROM ({_UNDOING}) AS undo), true)
)"""
# Jobs whose ids `staged_jobs` refuses stay dead without blocking others. A job waits again for its predecessors, except
# discarded ones; the leader compares changed_xid. A flow's end always waits for its opening: the leader must finish it.
_OPENING = "edge.on_failure = 'run' AND edge.parent_id > edge.child_id"
# A job that runs only if a flow has a dead member is alarmed by one of those there are.
_TAKE = f"""
WITH {_NOT_UNDONE}, taken AS (
    DELETE FROM dead_jobs WHERE ctid = ANY (ARRAY (SELECT place FROM chosen)) RETURNING *
), edges AS (
    UPDATE job_edges AS edge
    SET state = CASE WHEN {_OPENING} OR coalesce({_IN_SOME_TABLE}) THEN 'waiting' ELSE 'met' END,
        changed_xid = pg_current_xact_id()
    WHERE edge.child_id = ANY (ARRAY (SELECT id FROM taken)) AND (edge.state <> 'met' OR {_OPENING})
    RETURNING edge.child_id, edge.parent_id, edge.on_failure, edge.state
), alarmed AS (
    UPDATE job_edges SET changed_xid = pg_current_xact_id() WHERE ctid = ANY (ARRAY (
        SELECT (SELECT member.ctid FROM job_edges AS member
            WHERE member.child_id = edges.parent_id AND member.state = 'waiting' AND member.child_id > 0
                AND member.on_failure = 'hold' AND (SELECT true FROM dead_jobs AS job WHERE job.id = member.awaited_id)
            LIMIT 1)
        FROM edges WHERE edges.on_failure = 'only' AND edges.state = 'waiting'))
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
# The entry of this death keeps the arguments that it had.
EDIT = """
UPDATE staged_jobs SET job_args = coalesce(%(args)s::jsonb, job_args),
    job_kwargs = coalesce(%(kwargs)s::jsonb, job_kwargs),
    history = pg_catalog.jsonb_set(history, '{-1}', (history -> -1) || pg_catalog.jsonb_build_object(
        'job_args', job_args, 'job_kwargs', job_kwargs, 'edited_at', now(),
        'edited_by', coalesce(%(edited_by)s::text, session_user::text)))
WHERE id = %(id)s::bigint
"""
_ARGUMENTS = """
SELECT job_name, job_args::text, job_kwargs::text FROM dead_jobs WHERE id = %(id)s::bigint FOR UPDATE
"""
# A flow about to be undone is kept, which holds its members back. The leader compares changed edges.
DISCARD = f"""
WITH gone AS (
    DELETE FROM dead_jobs WHERE {_SELECTED} AND (
        SELECT coalesce((SELECT true FROM staged_jobs AS job WHERE job.id = undone_by LIMIT 1),
            (SELECT true FROM inflight_jobs AS job WHERE job.id = undone_by))
        FROM flows WHERE flows.id = dead_jobs.id) IS NULL
    RETURNING id
), changed AS (
    UPDATE job_edges SET changed_xid = pg_current_xact_id()
    WHERE awaited_id = ANY (ARRAY (SELECT id FROM gone)) AND state = 'waiting'
)
SELECT count(*) FROM gone
"""
_IS_BLOCKED_UNDO = (
    f"(SELECT true FROM staged_jobs_scheduled AS job WHERE job.id = undo.id AND ({IS_BLOCKED}) IS TRUE)"
)
BEING_UNDONE = f"""
WITH {_CHOSEN}
SELECT DISTINCT ON (dead.id) dead.id, undo.id, undo.flow FROM selected AS dead, LATERAL ({_UNDOING}) AS undo
WHERE NOT {_MAY_BE_RETRIED.format(is_blocked=_IS_BLOCKED_UNDO, undo_lock="", lock="")}
ORDER BY dead.id, undo.flow LIMIT 10
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


def being_undone(connection: Connection, selection: Selection) -> list[str]:
    """Return a line for each selected job that cannot be retried because it, or its flow, is undone, 10 at most."""
    rows = connection.execute(BEING_UNDONE, selection.parameters())
    return [_undone(*row) for row in rows]


def why_left(connection: Connection, selection: Selection, verb: str) -> str:
    """Return why `revive` ("retry") or `discard` ("discard") has left selected jobs."""
    if not count(connection, selection):
        return "the jobs were retried or discarded in the meantime"
    if verb == "discard":
        return "their flow is still being undone; try again when it is undone"
    if undone := being_undone(connection, selection):
        return undone[0]
    return "another transaction is changing their flow or its undo; try again"


def _undone(job_id: int, undo_id: int, flow: int | None) -> str:
    if flow is None:
        return f"job {job_id} is being undone by job {undo_id}; retry it when that has finished"
    part = "" if job_id == flow else f"job {job_id} cannot be retried: "
    return f"{part}flow {flow} has failed and is undone by job {undo_id}; stage a new flow"


def revive(
    connection: Connection,
    selection: Selection,
    per_second: float | None = None,
    first_at: datetime | None = None,
) -> int:
    """Stage dead jobs again under their ids, blocked while predecessors have not finished; return how many.

    Leaves jobs that are being undone, and members of flows that are.

    Args:
        per_second: Rate at which they come due, in id order.
        first_at: When the first one comes due, with a rate; by default now.
    """
    if per_second is None:
        return connection.execute(REVIVE, selection.parameters()).rowcount
    parameters = {**selection.parameters(), "per_second": per_second, "first_at": first_at}
    return connection.execute(REVIVE_SPREAD, parameters).rowcount


def arguments(connection: Connection, job_id: int) -> tuple[str, str, str] | None:
    """Lock a dead job; return its name and its arguments as JSON, or None if it is not dead."""
    return connection.execute(_ARGUMENTS, {"id": job_id}).fetchone()


def edit(
    connection: Connection, job_id: int, args: str | None, kwargs: str | None, edited_by: str | None
) -> bool:
    """Replace arguments of a job that this transaction has revived; return False if it has not.

    Args:
        args: JSON; None keeps the job's own, as for `kwargs`.
        edited_by: Recorded in its history; by default the session's role.
    """
    given = {"id": job_id, "args": args, "kwargs": kwargs, "edited_by": edited_by}
    return connection.execute(EDIT, given).rowcount == 1


def discard(connection: Connection, selection: Selection) -> int:
    """Delete dead jobs, except flows yet to be undone; return how many."""
    (count,) = fetch_one(connection, DISCARD, selection.parameters())
    return int(count)
