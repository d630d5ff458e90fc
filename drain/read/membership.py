"""The flow that a job belongs to."""

from __future__ import annotations

from typing import NamedTuple

from drain.database.postgres import Connection

# Looking through them takes 20 ms.
_MOST_LOOKED_AT = 10_000
# An edge that no longer waits has no index by its member, but members are staged after their flow.
_OF_JOB = f"""
SELECT flow.id, flow.name, edge.node
FROM job_edges AS edge JOIN flows AS flow ON flow.id = edge.child_id
WHERE edge.awaited_id = %(id)s::bigint AND edge.state = 'waiting' AND edge.on_failure = 'hold'
UNION ALL SELECT flow.id, flow.name, NULL FROM flows AS flow WHERE flow.id = %(id)s::bigint
UNION ALL SELECT flow.id, flow.name, edge.node FROM (
    SELECT id, name FROM flows WHERE id < %(id)s::bigint ORDER BY id DESC LIMIT {_MOST_LOOKED_AT}) AS flow, LATERAL (
    SELECT node FROM job_edges AS edge
    WHERE edge.parent_id = %(id)s::bigint AND edge.child_id = flow.id AND edge.on_failure = 'hold' OFFSET 0) AS edge
LIMIT 1
"""


class Place(NamedTuple):
    """Flow of a job; `node` is None for a batch, and for its end."""

    id: int
    name: str | None
    node: str | None

    @property
    def words(self) -> str:
        """`node fetch of flow 42 onboarding`."""
        node = "part" if self.node is None else f"node {self.node}"
        return f"{node} of flow {self.id}{f' {self.name}' if self.name else ''}"


def find(connection: Connection, job_id: int) -> Place | None:
    """Find the flow that a job is a member of, or ends; None for other jobs.

    If the flow no longer waits for it, looks among the 10,000 flows before it.
    """
    row = connection.execute(_OF_JOB, {"id": job_id}).fetchone()
    return Place._make(row) if row else None
