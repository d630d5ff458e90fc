"""Flows: their states and members.

Counts come from the edges of a flow's end, which the leader meets milliseconds after a member has finished.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.errors import UnknownJobError
from drain.jobs.values import LARGEST_ID
from drain.read import membership
from drain.read.dependencies import DEAD_STATES, STATE
from drain.read.unfinished_flows import CAN_GO_ON
from drain.tables.columns import ATTEMPTS
from drain.tables.flow_pauses import IS_PAUSED, OPENING

STATES = ("running", "paused", "failing", "failed", "undoing", "undone", "finished", "cancelled")
UNFINISHED = ("running", "paused", "failing", "failed", "undoing", "undone")
# Unfinished members that an explanation looks at.
MOST_LOOKED_AT = 10_000
_CALLBACKS = ("on_success", "on_complete", "on_dead")

_ARE_MEMBERS = "edge.child_id = {flow} AND edge.on_failure = 'hold'"
_MEMBERS = f"job_edges AS edge WHERE {_ARE_MEMBERS}"
_OF_FLOW = _ARE_MEMBERS.format(flow="flow.id")
# In flight only if a leader of an older version has moved it.
_IS_OPEN = """coalesce((SELECT true FROM staged_jobs AS job WHERE job.id = flow.id LIMIT 1),
    (SELECT true FROM inflight_jobs AS job WHERE job.id = flow.id))"""
_FLOWS = f"""
SELECT found.* FROM (
    SELECT flow.id, flow.name, flow.description, flow.on_success, flow.on_complete, flow.on_dead, flow.undone_by,
        flow.expires_at, flow.staged_at, flow.staged_by, ended.at AS ended_at, counted.*, CASE
        WHEN ended.state <> 'open' THEN ended.state
        WHEN {IS_PAUSED.format(flow="flow.id")} THEN 'paused'
        WHEN counted.dead = 0 THEN 'running'
        WHEN counted.finished + counted.dead < counted.total
            AND {CAN_GO_ON.format(flow="flow.id", most=MOST_LOOKED_AT)} THEN 'failing'
        WHEN flow.undone_by IS NULL OR counted.finished + counted.dead < counted.total THEN 'failed'
        WHEN (SELECT true FROM finished_jobs AS job WHERE job.id = flow.undone_by LIMIT 1) THEN 'undone'
        WHEN (SELECT true FROM staged_jobs AS job WHERE job.id = flow.undone_by LIMIT 1)
            OR (SELECT true FROM inflight_jobs AS job WHERE job.id = flow.undone_by) THEN 'undoing'
        ELSE 'failed' END AS state
    FROM flows AS flow, LATERAL (
        SELECT 'open' AS state, NULL::timestamptz AS at WHERE {_IS_OPEN}
        UNION ALL SELECT 'cancelled', died_at FROM dead_jobs AS job WHERE job.id = flow.id
        UNION ALL SELECT 'finished', finished_at FROM finished_jobs AS job WHERE job.id = flow.id
        LIMIT 1) AS ended, LATERAL (
        SELECT count(*) AS total, count(*) FILTER (WHERE state = 'met') AS finished, count(job.id) AS dead
        FROM job_edges AS edge LEFT JOIN dead_jobs AS job ON job.id = edge.awaited_id AND edge.state <> 'met'
        WHERE {_OF_FLOW}) AS counted
    WHERE {{condition}} ORDER BY flow.id DESC) AS found
WHERE %(state)s::text IS NULL OR found.state = %(state)s::text
ORDER BY found.id DESC LIMIT %(limit)s::bigint
"""
_LIST = _FLOWS.format(
    condition="""(%(name)s::text IS NULL OR flow.name = %(name)s::text)
    AND (%(before)s::bigint IS NULL OR flow.id < %(before)s::bigint)"""
)
_ONE = _FLOWS.format(condition="flow.id = %(id)s::bigint")
_NAMED = (
    f"SELECT flow.id FROM flows AS flow WHERE flow.name = %s::text AND {_IS_OPEN} ORDER BY flow.id LIMIT 3"
)
_CHOICE = f"""
(SELECT {{rank}} AS rank, edge.parent_id, edge.awaited_id, edge.node, edge.state
    FROM {_MEMBERS.format(flow="%(flow)s::bigint")} AND {{condition}}
    ORDER BY edge.parent_id LIMIT %(limit)s::bigint)"""
_IN = "edge.state <> 'met' AND (SELECT true FROM {table} AS job WHERE job.id = edge.awaited_id)"
# Dead members first, then those in flight. A member whose edge is met has finished, even if it was archived.
_NODES = f"""
SELECT chosen.parent_id, chosen.node, coalesce(nullif({STATE.format(id="chosen.awaited_id")}, 'unknown'),
        CASE chosen.state WHEN 'met' THEN 'finished' ELSE 'unknown' END),
    job.name, coalesce(job.attempts, 0), job.began_at, job.ended_at, ARRAY (
        SELECT above.parent_id FROM job_edges AS above
        WHERE above.child_id = chosen.parent_id AND (SELECT inside.on_failure = 'hold' FROM job_edges AS inside
            WHERE inside.child_id = %(flow)s::bigint AND inside.parent_id = above.parent_id)
        ORDER BY above.parent_id LIMIT %(limit)s::bigint)
FROM (
    SELECT min(rank) AS rank, parent_id, awaited_id, node, state FROM (
        {_CHOICE.format(rank=0, condition=_IN.format(table="dead_jobs"))}
        UNION ALL {_CHOICE.format(rank=1, condition=_IN.format(table="inflight_jobs"))}
        UNION ALL {_CHOICE.format(rank=2, condition="(NOT %(unfinished)s::boolean OR edge.state <> 'met')")}) AS every
    GROUP BY parent_id, awaited_id, node, state ORDER BY 1, parent_id LIMIT %(limit)s::bigint) AS chosen
LEFT JOIN LATERAL (
    SELECT job_name AS name, {ATTEMPTS} AS attempts, claimed_at AS began_at,
        NULL::timestamptz AS ended_at FROM inflight_jobs AS job WHERE job.id = chosen.awaited_id
    UNION ALL SELECT job_name, 0, NULL, NULL FROM staged_jobs AS job WHERE job.id = chosen.awaited_id
    UNION ALL SELECT job_name, attempts, NULL, died_at FROM dead_jobs AS job WHERE job.id = chosen.awaited_id
    UNION ALL SELECT job_name, attempts, claimed_at, finished_at FROM finished_jobs AS job
        WHERE job.id = chosen.awaited_id
    LIMIT 1) AS job ON true
ORDER BY chosen.parent_id
"""
_UNFINISHED = f"""
SELECT edge.parent_id, edge.awaited_id FROM {_MEMBERS.format(flow="%(flow)s::bigint")} AND edge.state <> 'met'
ORDER BY 1
"""
_FREED = f"""
SELECT coalesce(edge.node, 'job ' || edge.parent_id), (
    SELECT CASE WHEN starts_at > now() THEN 'scheduled' ELSE 'waiting' END
    FROM staged_jobs AS job WHERE job.id = edge.parent_id LIMIT 1)
FROM {_MEMBERS.format(flow="%(flow)s::bigint")} AND edge.state <> 'met' AND ARRAY (
    SELECT above.awaited_id FROM job_edges AS above
    WHERE above.child_id = edge.parent_id AND above.state = 'waiting' AND above.child_id > 0 LIMIT 2
) = ARRAY[{OPENING.format(flow="%(flow)s::bigint")}]
ORDER BY edge.parent_id LIMIT %(limit)s::bigint
"""
# The end is older than its callbacks and members.
_PAUSED = "SELECT min(child_id) FROM job_edges WHERE awaited_id = %s::bigint AND state = 'waiting'"
_STATES_OF = (
    f"SELECT given.id, {STATE.format(id='given.id')} FROM pg_catalog.unnest(%s::bigint[]) AS given (id)"
)


class UnknownFlowError(UnknownJobError):
    """No flow has this id or name."""


class Flow(NamedTuple):
    """Flow and its counts.

    Attributes:
        id: Of its end.
        staged_by: Database role.
        ended_at: Time of its finish or cancellation.
        total: Members so far.
        finished: Of an ended flow, those that had finished by then.
        undone_by: Job that undoes the members' steps if one dies.
        state: One of `STATES`; failing while a member is dead and others can run, then failed, or undoing and undone.
    """

    id: int
    name: str | None
    description: str | None
    on_success: int | None
    on_complete: int | None
    on_dead: int | None
    undone_by: int | None
    expires_at: datetime | None
    staged_at: datetime
    staged_by: str | None
    ended_at: datetime | None
    total: int
    finished: int
    dead: int
    state: str

    @property
    def callbacks(self) -> dict[str, int]:
        """Job ids by event."""
        given = {name: getattr(self, name) for name in _CALLBACKS}
        return {name: job_id for name, job_id in given.items() if job_id is not None}

    @property
    def words(self) -> str:
        """`42 onboarding`."""
        return f"{self.id} {self.name or ''}".rstrip()

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types, except times."""
        return {name: value for name, value in self._asdict().items() if name not in _CALLBACKS}


class Node(NamedTuple):
    """Member of a flow.

    Attributes:
        name: None in a batch.
        attempts: Including the current one.
        after: The members that it waits, or waited, for.
    """

    id: int
    name: str | None
    state: str
    job_name: str | None
    attempts: int
    began_at: datetime | None
    ended_at: datetime | None
    after: Sequence[int]

    @property
    def title(self) -> str:
        """Its name, or `job 42`."""
        return self.name or f"job {self.id}"

    @property
    def is_unfinished(self) -> bool:
        """True if the flow waits for it."""
        return self.state not in ("finished", "superseded")

    @property
    def is_dead(self) -> bool:
        """True if only a retry or discard ends the wait."""
        return self.state in DEAD_STATES

    def seconds(self, now: datetime) -> float | None:
        """Return the duration of its latest attempt, if known."""
        if self.began_at is None or (self.ended_at is None and self.state != "running"):
            return None
        return max(0.0, ((self.ended_at or now) - self.began_at).total_seconds())


def page(
    connection: Connection,
    limit: int,
    *,
    name: str | None = None,
    state: str | None = None,
    before: int | None = None,
) -> list[Flow]:
    """List flows, latest first, with ids below `before`."""
    given = {"limit": limit, "name": name, "state": state, "before": before}
    return [Flow._make(row) for row in connection.execute(_LIST, given, binary=True)]


def find(connection: Connection, text: str) -> Flow:
    """Read the flow with this id, or the only unfinished one with this name.

    Raises:
        UnknownFlowError: There is none, or there are several.
    """
    # Not 007, which can only be a name.
    job_id = int(text) if re.fullmatch("[1-9][0-9]{0,18}", text) and int(text) <= LARGEST_ID else None
    if job_id is not None:
        given = {"id": job_id, "limit": 1, "state": None}
        for row in connection.execute(_ONE, given, binary=True):
            return Flow._make(row)
    ids = [flow_id for (flow_id,) in connection.execute(_NAMED, (text,))]
    if len(ids) > 1:
        named = ", ".join(map(str, ids[:2]))
        raise UnknownFlowError(f"several unfinished flows are named {text!r:.300}: {named}, ...; give an id")
    if not ids:
        if job_id is not None and (of := membership.find(connection, job_id)):
            raise UnknownFlowError(f"job {text} is not a flow, but {of.words}: see `drain flow show {of.id}`")
        raise UnknownFlowError(
            f"no flow has the id, and no unfinished one the name {text!r:.300}: see `drain flow list`"
        )
    return find(connection, str(ids[0]))


def nodes(connection: Connection, flow_id: int, limit: int, *, unfinished: bool = False) -> list[Node]:
    """Read members by id; of more than `limit`, dead ones first, then those in flight."""
    given = {"flow": flow_id, "limit": limit, "unfinished": unfinished}
    return [Node._make(row) for row in connection.execute(_NODES, given, binary=True)]


def unfinished(connection: Connection, flow_id: int) -> list[tuple[int, int]]:
    """Read the ids of members that have not finished, each with that of the job that counts."""
    return connection.execute(_UNFINISHED, {"flow": flow_id}).fetchall()


def freed(connection: Connection, flow_id: int, limit: int) -> list[tuple[str, str]]:
    """Read members that wait for nothing but a flow's pause, with the states that follow it."""
    return connection.execute(_FREED, {"flow": flow_id, "limit": limit}).fetchall()


def of_gate(connection: Connection, gate_id: int) -> int | None:
    """Return the flow that a gate holds."""
    (flow_id,) = fetch_one(connection, _PAUSED, (gate_id,))
    return None if flow_id is None else int(flow_id)


def states(connection: Connection, ids: Sequence[int]) -> dict[int, str]:
    """Map jobs to their states, as in `Node`."""
    return dict(connection.execute(_STATES_OF, (list(ids),)).fetchall())
