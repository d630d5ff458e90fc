"""Edges between jobs, as the leader reads and changes them; `drain_after` in `schema.sql` inserts them.

The child of an edge waits for its parent, or for the job that superseded the parent: the awaited one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import CHILD_WAITS, IS_BLOCKED, id_array, these_rows

# Scalar, as in `dead`: EXISTS may be planned as a hash of a whole table.
_IS_BLOCKED = f"""coalesce(
    (SELECT true FROM staged_jobs_scheduled AS job WHERE job.id = edge.child_id AND ({IS_BLOCKED}) IS TRUE LIMIT 1),
    false)"""


class Snapshot(NamedTuple):
    """Snapshot of a look: a later one sees more of the transactions `running` and of those from `xmax` on."""

    xmax: str
    running: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse PostgreSQL's text, xmin:xmax:running."""
        _, xmax, running = text.split(":")
        return cls(xmax, f"{{{running}}}")


class Findings(NamedTuple):
    """Result of a look.

    Attributes:
        waits: Some edge waits.
        children: Those of new or changed edges that may not wait any more.
        finished: Awaited jobs that finished.
        ended: Awaited jobs that died or were superseded.
        died: Children that died.
    """

    snapshot: Snapshot
    waits: bool
    children: Sequence[int] = ()
    finished: Sequence[int] = ()
    ended: Sequence[int] = ()
    died: Sequence[int] = ()


_WAITS = f"EXISTS (SELECT FROM job_edges WHERE {CHILD_WAITS})"
FIRST_LOOK = f"SELECT pg_current_snapshot()::text, {_WAITS}"


# A restored database has transactions from the future.
_LATER = """
SELECT {columns} FROM {table}
WHERE {xid} >= %(xmax)s::xid8 AND {xid} < pg_snapshot_xmax(pg_current_snapshot()) AND {condition}"""
# OFFSET keeps it a look-up for each, even in a table that is believed empty.
_RAN = """
SELECT ended.* FROM pg_catalog.unnest(%(running)s::xid8[]) AS ran (xid), LATERAL (
    SELECT {columns} FROM {table} WHERE {xid} = ran.xid AND {condition} OFFSET 0) AS ended"""


def _new(columns: str, table: str, xid: str, condition: str = "true") -> str:
    """Build a query of the rows that the last look did not see, by index, whatever its oldest transaction."""
    return " UNION ALL ".join(
        part.format(columns=columns, table=table, xid=xid, condition=condition) for part in (_LATER, _RAN)
    )


# Of more, only the comparison asks for the ends, page by page.
_MOST_ASKED = 1000
_NEW_EDGES = f"""
fresh AS MATERIALIZED ({_new("child_id, awaited_id", "job_edges", "changed_xid", "state = 'waiting'")})"""
# Unless the child is blocked and the awaited job unfinished: a later look finds its end.
_NEW_CHILDREN = f"""
ARRAY (SELECT DISTINCT child_id FROM fresh WHERE (SELECT count(*) FROM fresh) > {_MOST_ASKED}
    OR (SELECT true FROM staged_jobs_scheduled WHERE id = child_id AND ({IS_BLOCKED}) IS TRUE) IS NULL
    OR coalesce((SELECT true FROM staged_jobs WHERE id = awaited_id LIMIT 1),
        (SELECT true FROM inflight_jobs WHERE id = awaited_id)) IS NULL)"""
LOOK_FOR_EDGES = f"WITH {_NEW_EDGES} SELECT pg_current_snapshot()::text, {_WAITS}, {_NEW_CHILDREN}"
_IS_AWAITED = "(SELECT true FROM job_edges WHERE awaited_id = id AND state = 'waiting' LIMIT 1)"
# Once: while a session holds an old snapshot, it steps over all edges met since.
_SOME_WAIT = "(SELECT waits FROM edge)"
LOOK = f"""
WITH {_NEW_EDGES}, edge AS MATERIALIZED (
    SELECT {_WAITS} AS waits
), done AS MATERIALIZED (
    SELECT * FROM ({_new("id, superseded_by", "finished_jobs", "finished_xid", _SOME_WAIT)}) AS new
), dead AS MATERIALIZED (
    SELECT * FROM ({_new("id", "dead_jobs", "died_xid", _SOME_WAIT)}) AS new
)
SELECT pg_current_snapshot()::text, {_SOME_WAIT}, {_NEW_CHILDREN},
    ARRAY (SELECT id FROM done WHERE superseded_by IS NULL AND {_IS_AWAITED}),
    ARRAY (SELECT id FROM done WHERE superseded_by IS NOT NULL AND {_IS_AWAITED}
        UNION ALL SELECT id FROM dead WHERE {_IS_AWAITED}),
    ARRAY (SELECT id FROM dead
        WHERE (SELECT true FROM job_edges WHERE child_id = id AND {CHILD_WAITS} LIMIT 1))
"""


def look(connection: Connection, last: Findings | None) -> Findings:
    """Find what transactions have ended since the last look; without one, only take the snapshot."""
    if last is None:
        text, waits = fetch_one(connection, FIRST_LOOK)
        return Findings(Snapshot.parse(text), waits)
    # If none waited, only new edges matter, and these are compared with the tables.
    statement = LOOK if last.waits else LOOK_FOR_EDGES
    # Planning takes ten times as long as the look.
    (row,) = connection.execute(statement, last.snapshot._asdict(), prepare=True).fetchall()
    return Findings(Snapshot.parse(row[0]), *row[1:])


class Edge(NamedTuple):
    """Waiting edge.

    Attributes:
        version: Of the child's row; None if it is not blocked, but cancelled.
    """

    child: int
    parent: int
    awaited: int
    on_failure: str
    version: int | None


_EDGE = f"""child_id, parent_id, awaited_id, on_failure, (
    SELECT job.xmin::text::bigint FROM staged_jobs_scheduled AS job
    WHERE job.id = edge.child_id AND ({IS_BLOCKED}) IS TRUE)"""
_PAGE = f"""
SELECT {_EDGE} FROM pg_catalog.unnest(%(ids)s::bigint[]) WITH ORDINALITY AS given (id, number), LATERAL (
    SELECT * FROM job_edges
    WHERE {{column}} = given.id AND {{waits}} AND (child_id, parent_id)
        > (CASE number WHEN 1 THEN %(child)s::bigint ELSE 0 END, CASE number WHEN 1 THEN %(parent)s::bigint ELSE 0 END)
    ORDER BY child_id, parent_id LIMIT %(most)s) AS edge
LIMIT %(most)s
"""
PAGE_OF_AWAITED = _PAGE.format(column="awaited_id", waits="state = 'waiting'")
PAGE_OF_CHILDREN = _PAGE.format(column="child_id", waits=CHILD_WAITS)
PAGE_OF_ALL = f"""
SELECT {_EDGE} FROM job_edges AS edge
WHERE {CHILD_WAITS} AND (child_id, parent_id) > (%(child)s::bigint, %(parent)s::bigint)
ORDER BY child_id, parent_id LIMIT %(most)s
"""


def read_page(
    connection: Connection, statement: str, ids: Sequence[int], after: tuple[int, int], most: int
) -> list[Edge]:
    """Read waiting edges.

    Args:
        statement: One of the three.
        ids: The awaited jobs or the children.
        after: Child and parent of the last edge read, of the first id or of all.
    """
    child, parent = after
    parameters = {"ids": id_array(ids), "child": child, "parent": parent, "most": most}
    return [Edge._make(row) for row in connection.execute(statement, parameters)]


OUTCOMES = """
SELECT id, CASE
    WHEN (SELECT true FROM staged_jobs AS job WHERE job.id = given.id LIMIT 1)
        OR (SELECT true FROM inflight_jobs AS job WHERE job.id = given.id) THEN 'unfinished'
    WHEN (SELECT true FROM dead_jobs AS job WHERE job.id = given.id) THEN 'dead'
    ELSE (SELECT coalesce(superseded_by::text, 'finished') FROM finished_jobs AS job WHERE job.id = given.id LIMIT 1)
    END
FROM pg_catalog.unnest(%s::bigint[]) AS given (id)
"""


def outcomes(connection: Connection, ids: Iterable[int]) -> dict[int, str | None]:
    """Read what became of jobs, in one snapshot.

    Returns:
        'unfinished', 'dead', 'finished', the id of the job that superseded it, or None: it is in no table.
    """
    return dict(connection.execute(OUTCOMES, (id_array(ids),)).fetchall())


# A child that was cancelled and retried since it was read has other edges, though it is blocked.
LOCK_CHILDREN = f"""
SELECT id FROM staged_jobs_scheduled
WHERE {these_rows(versions="xmin::text::bigint")} AND ({IS_BLOCKED}) IS TRUE FOR UPDATE SKIP LOCKED
"""


def lock_children(connection: Connection, versions: Mapping[int, int]) -> set[int]:
    """Lock blocked jobs that have not changed; return those that no other session has locked."""
    parameters = {"ids": id_array(versions), "versions": id_array(versions.values())}
    return {id_ for (id_,) in connection.execute(LOCK_CHILDREN, parameters)}


# A join with a table that is believed empty would compare each row with each.
_CHANGE = """
UPDATE job_edges SET {assignment}, changed_xid = pg_current_xact_id()
WHERE ctid = ANY (ARRAY (
    SELECT edge.ctid FROM unnest(%(children)s::bigint[], %(parents)s::bigint[]) AS new (child, parent), LATERAL (
        SELECT ctid FROM job_edges WHERE child_id = new.child AND parent_id = new.parent OFFSET 0) AS edge))
"""
MEET = _CHANGE.format(assignment="state = 'met'")
FOLLOW = _CHANGE.format(
    assignment="""awaited_id = (
    SELECT new.awaited FROM unnest(%(children)s::bigint[], %(parents)s::bigint[], %(awaited)s::bigint[])
        AS new (child, parent, awaited) WHERE new.child = child_id AND new.parent = parent_id)"""
)


def meet(connection: Connection, edges: Sequence[Edge]) -> None:
    """Note that these edges' jobs ended as awaited; their children are locked."""
    if edges:
        connection.execute(MEET, _arrays(edges))


def follow(connection: Connection, edges: Sequence[Edge]) -> None:
    """Let these edges await other jobs; their children are locked."""
    if edges:
        awaited = {"awaited": id_array(edge.awaited for edge in edges)}
        connection.execute(FOLLOW, _arrays(edges) | awaited)


def _arrays(edges: Sequence[Edge]) -> dict[str, str]:
    return {
        "children": id_array(edge.child for edge in edges),
        "parents": id_array(edge.parent for edge in edges),
    }


MOST_IDLE = 1000
# If a retry has blocked a child again since, changed_xid differs.
IDLE = f"""
WITH seen AS MATERIALIZED (
    SELECT child_id, parent_id, changed_xid FROM job_edges AS edge
    WHERE child_id = ANY (%(ids)s::bigint[]) AND {CHILD_WAITS} AND NOT {_IS_BLOCKED} LIMIT %(most)s
), locked AS MATERIALIZED (
    SELECT edge.ctid FROM seen, LATERAL (
        SELECT ctid FROM job_edges
        WHERE child_id = seen.child_id AND parent_id = seen.parent_id AND changed_xid = seen.changed_xid
            AND state = 'waiting'
        FOR UPDATE SKIP LOCKED) AS edge
)
UPDATE job_edges SET state = 'idle' WHERE ctid = ANY (ARRAY (SELECT ctid FROM locked)) RETURNING child_id
"""


def idle(connection: Connection, children: Collection[int]) -> set[int]:
    """End the waiting of edges whose children are not blocked.

    Returns:
        Those children; none if there are more edges than are changed at once.
    """
    rows = connection.execute(IDLE, {"ids": id_array(children), "most": MOST_IDLE}).fetchall()
    return {id_ for (id_,) in rows} if len(rows) < MOST_IDLE else set()
