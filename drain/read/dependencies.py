"""Predecessors and successors of one job.

A predecessor's state is that of the job that counts: itself, or the job that superseded it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import DEFERRED, IS_BLOCKED, PARKED, RETRYING, RUNNING, STALLED
from drain.tables.flow_pauses import IS_GATE

MOST = 20
COUNTED_UP_TO = 10_000
# What happens to the waiting job if a predecessor dies, by `on_failure`.
IF_IT_DIES = {"cancel": "cancel", "run": "run", "hold": "wait for its retry", "only": "run only then"}

# Scalar, so that a planner that believes a table empty cannot hash it.
STATE = f"""coalesce(
    (SELECT CASE WHEN {IS_GATE} THEN 'paused' WHEN {IS_BLOCKED} THEN 'blocked'
        WHEN scheduled_at > clock_timestamp() THEN 'scheduled' ELSE 'waiting' END
        FROM staged_jobs AS job WHERE job.id = {{id}} LIMIT 1),
    (SELECT CASE WHEN {RUNNING} THEN 'running' WHEN {STALLED} THEN 'stalled' WHEN {PARKED} THEN 'parked'
        WHEN {DEFERRED} THEN 'deferred' WHEN {RETRYING} THEN 'retrying' ELSE 'queued' END
        FROM inflight_jobs AS job WHERE job.id = {{id}} LIMIT 1),
    (SELECT CASE WHEN superseded_by IS NULL THEN 'finished' ELSE 'superseded' END
        FROM finished_jobs AS job WHERE job.id = {{id}} LIMIT 1),
    (SELECT CASE WHEN reason IN ('cancelled', 'expired') THEN reason ELSE 'dead' END
        FROM dead_jobs AS job WHERE job.id = {{id}} LIMIT 1),
    'unknown')"""
DEAD_STATES = ("dead", "cancelled", "expired")
# The waiting ones first.
_PREDECESSORS = f"""
SELECT parent_id, awaited_id, on_failure, edge_state, {STATE.format(id="edge.awaited_id")} FROM (
    SELECT parent_id, awaited_id, on_failure, state AS edge_state FROM job_edges
    WHERE child_id = %(id)s::bigint {{condition}}
    ORDER BY state = 'met', parent_id LIMIT %(most)s::bigint) AS edge
"""
_WAITING = _PREDECESSORS.format(condition="AND state = 'waiting'")
_ALL = _PREDECESSORS.format(condition="")
_SUCCESSORS = f"""
SELECT child_id, {STATE.format(id="edge.child_id")} FROM (
    SELECT child_id FROM job_edges WHERE awaited_id = %(id)s::bigint AND state = 'waiting'
    ORDER BY child_id LIMIT %(most)s::bigint) AS edge
"""
_COUNT = f"""
SELECT count(*) FROM (SELECT FROM job_edges WHERE {{condition}} LIMIT {COUNTED_UP_TO}) AS edge
"""
_COUNT_PREDECESSORS = _COUNT.format(condition="child_id = %(id)s::bigint")
_COUNT_SUCCESSORS = _COUNT.format(condition="awaited_id = %(id)s::bigint AND state = 'waiting'")


# Of its flow, of the flow that it ends, or its own.
_UNDO = f"""
SELECT undone_by, {STATE.format(id="undone_by")},
    (SELECT explanation FROM dead_jobs AS job WHERE job.id = undone_by), flow, coalesce((
        SELECT state = 'met' FROM job_edges WHERE child_id = undone_by AND parent_id = flow), false)
FROM (
    SELECT undone_by, id AS flow FROM flows WHERE undone_by IS NOT NULL AND id = ANY (ARRAY (
        SELECT child_id FROM job_edges WHERE awaited_id = %(id)s::bigint AND state = 'waiting' AND on_failure = 'hold'
        UNION ALL SELECT %(id)s::bigint))
    UNION ALL SELECT undone_by, NULL FROM job_steps WHERE job_id = %(id)s::bigint AND undone_by IS NOT NULL
    LIMIT 1) AS undo
"""


class Predecessor(NamedTuple):
    """Job that another waits for.

    Attributes:
        awaited_id: The job that counts.
        edge: `waiting`, `met`, or `idle` if the waiting job was cancelled or superseded.
        state: Of the job that counts; `unknown` if in no table, `paused` for the gate of a paused flow.
    """

    id: int
    awaited_id: int
    on_failure: str
    edge: str
    state: str

    @property
    def holds(self) -> bool:
        """True if only a retry or discard of the predecessor ends the wait."""
        return self.on_failure == "hold" and self.state in DEAD_STATES

    @property
    def has_ended(self) -> bool:
        """True if only the leader ends the wait."""
        return self.state in ("finished", "superseded", "unknown", *DEAD_STATES) and not self.holds

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        superseded = {"superseded_by": self.awaited_id} if self.awaited_id != self.id else {}
        return {
            "id": self.id,
            "state": self.state,
            "on_failure": self.on_failure,
            "is_met": self.edge == "met",
            **superseded,
        }


class Successor(NamedTuple):
    """Job that waits for another."""

    id: int
    state: str


class Undo(NamedTuple):
    """Job that undoes the steps of another, or of the members of a flow.

    Attributes:
        explanation: Why it is dead.
        flow: The flow that it undoes.
        is_due: It runs, or ran, once all members of the flow have ended.
    """

    id: int
    state: str
    explanation: str | None
    flow: int | None
    is_due: bool

    def __str__(self) -> str:
        return f"job {self.id} ({self.state})" + (f": {self.explanation}" if self.explanation else "")

    @property
    def is_final(self) -> bool:
        """True if it runs, will run, or has died; a flow stays undone."""
        if self.flow is not None:
            return self.is_due
        return self.state not in ("blocked", "finished", "superseded", "unknown")


class Dependencies(NamedTuple):
    """Edges of one job: the first `MOST` of each direction, and counts up to `COUNTED_UP_TO`; and its undo."""

    predecessors: Sequence[Predecessor]
    predecessor_count: int
    successors: Sequence[Successor]
    successor_count: int
    undo: Undo | None

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types, without empty parts."""
        found: dict[str, Any] = {}
        if self.predecessors:
            jobs = [each.as_json() for each in self.predecessors]
            found["waits_for"] = {"count": self.predecessor_count, "jobs": jobs}
        if self.successors:
            found["waited_for_by"] = {
                "count": self.successor_count,
                "jobs": [each._asdict() for each in self.successors],
            }
        if self.undo:
            found["undone_by"] = self.undo._asdict()
        return found


def read(connection: Connection, job_id: int) -> Dependencies:
    """Read a job's predecessors, unmet ones first, the jobs that still wait for it, and the one that undoes it."""
    given = {"id": job_id, "most": MOST}
    predecessors = [Predecessor._make(row) for row in connection.execute(_ALL, given)]
    successors = [Successor._make(row) for row in connection.execute(_SUCCESSORS, given)]
    return Dependencies(
        predecessors,
        _number(connection, _COUNT_PREDECESSORS, job_id, predecessors),
        successors,
        _number(connection, _COUNT_SUCCESSORS, job_id, successors),
        undoing(connection, job_id),
    )


def undoing(connection: Connection, job_id: int) -> Undo | None:
    """Read the job that undoes this one's steps or its flow, unless it only would if a job died."""
    undo = undo_of(connection, job_id)
    return undo if undo is not None and undo.is_final else None


def undo_of(connection: Connection, job_id: int) -> Undo | None:
    """Read the job that undoes a job or flow, in any state."""
    row = connection.execute(_UNDO, {"id": job_id}).fetchone()
    return Undo._make(row) if row else None


def awaited(connection: Connection, job_id: int, most: int) -> list[Predecessor]:
    """Read the predecessors that a job still waits for, lowest id first."""
    return [Predecessor._make(row) for row in connection.execute(_WAITING, {"id": job_id, "most": most})]


def _number(connection: Connection, statement: str, job_id: int, first: Sequence[object]) -> int:
    if len(first) < MOST:
        return len(first)
    (number,) = fetch_one(connection, statement, {"id": job_id})
    return int(number)
