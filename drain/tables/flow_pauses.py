"""Pauses of flows: members wait for a gate, which has the id of the flow's opening.

The gate is a blocked row without edges, so it never becomes due. Once it is deleted, the leader finds the opening in
no table, which meets the edges. Members that are not staged get idle edges to it, and wait if they are retried. The
context of the end makes drain_join() look for a gate.
"""

from __future__ import annotations

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import BLOCKED_AT, IS_BLOCKED

GATE = "drain.jobs.markers.pause_of_flow"
# The end waits for it, whatever becomes of it. It is one of the first, which an index finds.
OPENING = """(SELECT parent_id FROM (
    SELECT parent_id, on_failure FROM job_edges WHERE child_id = {flow} ORDER BY parent_id LIMIT 100) AS edge
    WHERE on_failure = 'run' LIMIT 1)"""
IS_GATE = f"{IS_BLOCKED} AND job_name = '{GATE}'"
# Nothing but the id to look for: blocked jobs share one scheduled_at.
IS_PAUSED = f"(SELECT {IS_GATE} FROM staged_jobs_scheduled AS job WHERE job.id = {OPENING})"
# Excludes members that join, and the leader.
_LOCK = (
    f"SELECT id FROM staged_jobs_scheduled WHERE id = %(flow)s::bigint AND ({IS_BLOCKED}) IS TRUE FOR UPDATE"
)
# Of the members, the end, and the callback that waits for the opening too. New versions of all rows: the leader may be
# about to apply what it has read of earlier ones. An earlier gate may have been cancelled by its id.
_PAUSE = f"""
WITH opening AS (
    SELECT {OPENING.format(flow="%(flow)s::bigint")} AS id
), cancelled AS (
    DELETE FROM dead_jobs WHERE id = (SELECT id FROM opening)
), gate AS (
    INSERT INTO staged_jobs (id, job_name, scheduled_at) OVERRIDING SYSTEM VALUE
    SELECT id, '{GATE}', {BLOCKED_AT} FROM opening
), locked AS (
    SELECT id FROM staged_jobs WHERE id = ANY (ARRAY (
        SELECT parent_id FROM job_edges
        WHERE child_id = %(flow)s::bigint AND on_failure = 'hold' AND state <> 'met'
        UNION ALL SELECT %(flow)s::bigint
        UNION ALL SELECT on_complete FROM flows WHERE id = %(flow)s::bigint))
    ORDER BY id FOR UPDATE
), held AS (
    UPDATE staged_jobs SET scheduled_at = {BLOCKED_AT}, matured_at = NULL,
        context = CASE WHEN id = %(flow)s::bigint THEN '{{"was_paused": true}}' ELSE context END,
        starts_at = CASE WHEN {IS_BLOCKED} THEN starts_at ELSE scheduled_at END
    WHERE id = ANY (ARRAY (SELECT id FROM locked)) RETURNING id
), edges AS (
    INSERT INTO job_edges (child_id, parent_id, awaited_id, on_failure, state)
    SELECT child.id, opening.id, opening.id, 'run', child.state FROM opening, (
        SELECT id, 'waiting' AS state FROM held UNION ALL
        SELECT parent_id, 'idle' FROM job_edges WHERE child_id = %(flow)s::bigint AND on_failure = 'hold'
            AND state <> 'met'
            AND (SELECT true FROM staged_jobs AS job WHERE job.id = parent_id LIMIT 1) IS NULL) AS child
    ON CONFLICT (child_id, parent_id) DO UPDATE SET state = excluded.state, changed_xid = pg_current_xact_id()
)
SELECT count(*) FROM held WHERE id <> %(flow)s::bigint
"""
_OPEN = f"""
DELETE FROM staged_jobs WHERE id = {OPENING.format(flow="%(flow)s::bigint")} AND ({IS_GATE}) IS TRUE RETURNING id
"""
# The leader compares changed edges.
_RESUME = f"""
WITH gate AS ({_OPEN}), changed AS (
    UPDATE job_edges SET changed_xid = pg_current_xact_id()
    WHERE awaited_id = (SELECT id FROM gate) AND state = 'waiting'
)
SELECT count(*) FROM gate
"""


def lock(connection: Connection, flow_id: int) -> bool:
    """Lock an unfinished flow in the open transaction; return False if it has ended."""
    return connection.execute(_LOCK, {"flow": flow_id}).fetchone() is not None


def pause(connection: Connection, flow_id: int) -> int:
    """Hold the staged jobs of a locked flow that is not paused; return how many.

    Raises:
        psycopg.errors.SerializationFailure: A scheduled row came due; repeat the transaction.
    """
    (held,) = fetch_one(connection, _PAUSE, {"flow": flow_id})
    return int(held)


def drop_gate(connection: Connection, flow_id: int) -> None:
    """Delete the gate of a flow whose jobs are all cancelled."""
    connection.execute(_OPEN, {"flow": flow_id})


def resume(connection: Connection, flow_id: int) -> bool:
    """End a flow's pause; return whether it was paused."""
    (ended,) = fetch_one(connection, _RESUME, {"flow": flow_id})
    return bool(ended)
