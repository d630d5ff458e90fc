"""Unfinished flows by state, and late ones, for the metrics, from a bounded number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from psycopg.types.json import Jsonb

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import CHILD_WAITS, IS_BLOCKED, MARKER, id_array
from drain.tables.flow_pauses import GATE, IS_PAUSED

# Flows and pauses; dead jobs, latest first; members of failing flows.
MOST = 10_000
# Flows with a dead member, oldest first.
_FAILING = 100
_MATES = 100

_WAITS_FOR_MEMBERS = f"""(
    SELECT true FROM (
        SELECT parent_id FROM job_edges WHERE child_id = member.awaited_id AND {CHILD_WAITS}
        ORDER BY parent_id LIMIT {_MATES}) AS above
    WHERE (SELECT true FROM job_edges AS mate WHERE mate.child_id = {{flow}} AND mate.parent_id = above.parent_id
        AND mate.state = 'waiting' AND mate.on_failure = 'hold')
    LIMIT 1)"""
_OF_FLOW = (
    f"FROM job_edges WHERE child_id = {{flow}} AND {CHILD_WAITS} AND on_failure = 'hold' ORDER BY parent_id"
)
# True if a member is neither dead nor waiting for another, or if there are more than `most`. Otherwise all wait,
# directly or not, for dead ones.
CAN_GO_ON = f"""coalesce((
    SELECT true FROM (SELECT awaited_id {_OF_FLOW} LIMIT {{most}}) AS member
    WHERE (SELECT true FROM dead_jobs AS job WHERE job.id = member.awaited_id) IS NULL
        AND (SELECT {IS_BLOCKED} AND {_WAITS_FOR_MEMBERS} FROM staged_jobs AS job
            WHERE job.id = member.awaited_id LIMIT 1) IS NOT TRUE
    LIMIT 1), (SELECT true {_OF_FLOW} OFFSET {{most}} LIMIT 1))"""

# Its undo has begun. The finished jobs of all days are asked last.
_IS_UNDONE = f"""CASE WHEN undone_by IS NULL THEN false
    WHEN (SELECT {IS_BLOCKED} FROM staged_jobs AS job WHERE job.id = undone_by LIMIT 1) THEN false
    ELSE coalesce((SELECT true FROM staged_jobs AS job WHERE job.id = undone_by LIMIT 1),
        (SELECT true FROM inflight_jobs AS job WHERE job.id = undone_by),
        (SELECT true FROM finished_jobs AS job WHERE job.id = undone_by LIMIT 1), false) END"""
# By the index `staged_jobs_marking_flows`.
_MARKED = f"""FROM staged_jobs_scheduled WHERE job_name = '{{name}}' AND staged_at > '-infinity'
    ORDER BY staged_at LIMIT {MOST}"""
# Ends of sub-flows have the same name.
COUNT = f"""
SELECT (SELECT count(*) FROM (SELECT id {_MARKED.format(name=MARKER)}) AS job
        WHERE (SELECT NOT {_IS_UNDONE} FROM flows WHERE flows.id = job.id)),
    (SELECT count(*) FROM (SELECT scheduled_at {_MARKED.format(name=GATE)}) AS job WHERE {IS_BLOCKED})
"""
# A member is staged after its flow's end. An undone flow needs no operator.
FAILING = f"""
SELECT edge.child_id, greatest(0, date_part('epoch', clock_timestamp() - min(dead.died_at)))
FROM (SELECT id, died_at FROM dead_jobs ORDER BY id DESC LIMIT {MOST}) AS dead, LATERAL (
    SELECT child_id FROM job_edges
    WHERE awaited_id = dead.id AND child_id < dead.id AND state = 'waiting' AND awaited_id IS NOT NULL
        AND on_failure = 'hold'
    OFFSET 0) AS edge
GROUP BY edge.child_id HAVING (SELECT NOT {_IS_UNDONE} FROM flows WHERE flows.id = edge.child_id)
    AND (SELECT {IS_BLOCKED} FROM staged_jobs_scheduled AS job WHERE job.id = edge.child_id)
ORDER BY edge.child_id LIMIT {_FAILING}
"""
STATES = f"""
SELECT CASE WHEN {IS_PAUSED.format(flow="flow.id")} THEN 'paused'
    WHEN {CAN_GO_ON.format(flow="flow.id", most="%(most)s::bigint")} THEN 'failing' ELSE 'failed' END
FROM pg_catalog.unnest(%(ids)s::bigint[]) AS flow (id)
"""
# Seconds by name.
LATE = f"""
SELECT id, name FROM (SELECT id {_MARKED.format(name=MARKER)}) AS job, LATERAL (
    SELECT name, staged_at FROM flows WHERE flows.id = job.id OFFSET 0) AS flow
WHERE clock_timestamp() > staged_at + make_interval(secs => (%(seconds)s::jsonb ->> name)::float8)
"""
ENDED = """
SELECT id, name, greatest(0, date_part('epoch', clock_timestamp() - staged_at)) FROM flows
WHERE id = ANY (%(ids)s::bigint[]) AND (name = ANY (%(names)s::text[])) IS TRUE
"""
OVERDUE = """
SELECT greatest(0, date_part('epoch', clock_timestamp() - (
    SELECT deadline FROM job_waits WHERE deadline IS NOT NULL ORDER BY deadline LIMIT 1)))
"""


class UnfinishedFlows(NamedTuple):
    """Unfinished flows, except those whose undo has begun.

    Attributes:
        states: Numbers by state, up to `MOST`; of those that are failing or failed, up to a hundred.
        failing_seconds: Longest time that a dead member has held a flow, or 0.
    """

    states: Mapping[str, int]
    failing_seconds: float


def count(connection: Connection) -> UnfinishedFlows:
    """Count unfinished flows; sequential scans must be off."""
    total, paused = fetch_one(connection, COUNT)
    # Otherwise, only dead jobs without a flow are read.
    failing = dict(connection.execute(FAILING).fetchall()) if total else {}
    given = {"ids": [*failing], "most": MOST // max(1, len(failing))}
    found = [state for (state,) in connection.execute(STATES, given)]
    held = [seconds for seconds, state in zip(failing.values(), found, strict=True) if state != "paused"]
    states = Counter(running=max(0, total - paused - len(held)), paused=paused, failing=0, failed=0)
    states.update(state for state in found if state != "paused")
    return UnfinishedFlows(states, max(held, default=0.0))


def late(connection: Connection, seconds: Mapping[str, float]) -> dict[int, str]:
    """Map ids of unfinished flows older than their name's `seconds` to names; sequential scans must be off."""
    return dict(connection.execute(LATE, {"seconds": Jsonb(seconds)}).fetchall())


def ended(connection: Connection, ids: Sequence[int], names: Iterable[str]) -> list[tuple[int, str, float]]:
    """Read id, name and seconds since staging of the flows with such names among markers."""
    return connection.execute(ENDED, {"ids": id_array(ids), "names": list(names)}).fetchall()


def overdue_seconds(connection: Connection) -> float:
    """Measure how long the leader has not ended a wait whose deadline has passed."""
    (seconds,) = fetch_one(connection, OVERDUE)
    return float(seconds or 0)
