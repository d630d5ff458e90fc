"""Edges between jobs, as the leader reads and changes them; `drain_after` in `schema.sql` inserts them.

The child of an edge waits for its parent, or for the job that superseded the parent: the awaited one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from drain.database.postgres import Connection
from drain.tables.columns import CHILD_WAITS, IS_BLOCKED, MARKER, id_array, these_rows

# Scalar, as in `dead`: EXISTS may be planned as a hash of a whole table.
_IS_BLOCKED = f"""coalesce(
    (SELECT true FROM staged_jobs_scheduled AS job WHERE job.id = edge.child_id AND ({IS_BLOCKED}) IS TRUE LIMIT 1),
    false)"""


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

    @property
    def place(self) -> tuple[int, int, int]:
        """Child, parent and awaited job."""
        return self.child, self.parent, self.awaited


class Page(NamedTuple):
    """Edges read.

    Attributes:
        number: All edges read.
        last: Place of the last one.
        released: Children that wait for fewer jobs now, which are locked.
        edges: Those to compare.
    """

    number: int
    last: tuple[int, int, int]
    released: Sequence[int]
    edges: list[Edge]


# Edges that a page meets: of finished jobs, or all, since all its jobs are known to have finished.
Meets: TypeAlias = Literal["none", "finished", "all"]
_VERSION = f"""(
    SELECT job.xmin::text::bigint FROM staged_jobs_scheduled AS job
    WHERE job.id = edge.child_id AND ({IS_BLOCKED}) IS TRUE)"""
_EDGE = f"child_id, parent_id, awaited_id, on_failure, {_VERSION}"
_OF_IDS = """
SELECT edge.* FROM pg_catalog.unnest(%(ids)s::bigint[]) WITH ORDINALITY AS given (id, number), LATERAL (
    SELECT ctid AS place, child_id, parent_id, awaited_id, on_failure FROM job_edges
    WHERE {column} = given.id AND {waits} AND (child_id, parent_id)
        > (CASE number WHEN 1 THEN %(child)s::bigint ELSE 0 END, CASE number WHEN 1 THEN %(parent)s::bigint ELSE 0 END)
    ORDER BY child_id, parent_id LIMIT %(most)s) AS edge
LIMIT %(most)s
"""
_OF_ALL = f"""
SELECT ctid AS place, child_id, parent_id, awaited_id, on_failure FROM job_edges
WHERE {CHILD_WAITS} AND (child_id, parent_id) > (%(child)s::bigint, %(parent)s::bigint)
ORDER BY child_id, parent_id LIMIT %(most)s
"""
# Meets the edges of finished jobs, and returns the last and those that neither wait nor are met: a row costs the leader
# 10 us. Many edges share a job, so each job is looked up once. A child retried since the snapshot is another row, and a
# finish is final, so `held` compares no versions.
_PAGE = f"""
WITH page AS MATERIALIZED ({{edges}}), ended AS MATERIALIZED (
    SELECT awaited_id FROM (SELECT DISTINCT awaited_id FROM page) AS given
    WHERE CASE %(meets)s::text WHEN 'all' THEN true ELSE coalesce(
        (SELECT true FROM staged_jobs AS job WHERE job.id = awaited_id LIMIT 1),
        (SELECT true FROM inflight_jobs AS job WHERE job.id = awaited_id)) IS NULL END
), finished AS MATERIALIZED (
    SELECT awaited_id FROM ended WHERE CASE %(meets)s::text WHEN 'all' THEN true WHEN 'finished'
        THEN (SELECT superseded_by IS NULL FROM finished_jobs AS job WHERE job.id = awaited_id LIMIT 1) END
), blocked AS MATERIALIZED (
    SELECT child_id FROM (SELECT DISTINCT child_id FROM page) AS edge WHERE {_IS_BLOCKED}
), over AS MATERIALIZED (
    SELECT place, child_id FROM page
    WHERE on_failure <> 'only' AND (awaited_id IN (SELECT awaited_id FROM finished)) IS TRUE
), held AS MATERIALIZED (
    SELECT id FROM staged_jobs_scheduled
    WHERE id = ANY (ARRAY (SELECT child_id FROM over)) AND ({IS_BLOCKED}) IS TRUE
    FOR UPDATE SKIP LOCKED
), met AS (
    UPDATE job_edges SET state = 'met', changed_xid = pg_current_xact_id()
    WHERE ctid = ANY (ARRAY (SELECT place FROM over WHERE (child_id IN (SELECT id FROM held)) IS TRUE))
)
SELECT {_EDGE}, number, is_done, CASE WHEN is_last THEN ARRAY (SELECT id FROM held) END FROM (
    SELECT *, number = (SELECT count(*) FROM page) AS is_last,
        CASE WHEN (awaited_id IN (SELECT awaited_id FROM ended)) IS TRUE
        THEN (place IN (SELECT place FROM over)) IS TRUE AND (child_id IN (SELECT id FROM held)) IS TRUE
        ELSE (child_id IN (SELECT child_id FROM blocked)) IS TRUE END AS is_done
    FROM (SELECT *, row_number() OVER () AS number FROM page) AS numbered) AS edge
WHERE is_last OR NOT is_done
"""
PAGE_OF_AWAITED = _PAGE.format(edges=_OF_IDS.format(column="awaited_id", waits="state = 'waiting'"))
PAGE_OF_CHILDREN = _PAGE.format(edges=_OF_IDS.format(column="child_id", waits=CHILD_WAITS))
PAGE_OF_ALL = _PAGE.format(edges=_OF_ALL)


def read_page(
    connection: Connection,
    statement: str,
    ids: Sequence[int],
    after: tuple[int, int],
    most: int,
    *,
    meets: Meets,
) -> Page | None:
    """Read up to `most` waiting edges, and note which are met; None if no edge is left.

    Args:
        statement: One of the three.
        ids: The awaited jobs or the children.
        after: Child and parent of the last edge read, of the first id or of all.
    """
    parameters = {"ids": id_array(ids), "child": after[0], "parent": after[1], "most": most, "meets": meets}
    rows = connection.execute(statement, parameters).fetchall()
    if not rows:
        return None
    *last, number, _, released = rows[-1]
    edges = [Edge._make(row[:-3]) for row in rows if not row[-2]]
    return Page(number, Edge._make(last).place, released, edges)


MOST_ALARMED = 1000
ALARMED = f"""
SELECT {_EDGE} FROM pg_catalog.unnest(%(ids)s::bigint[]) AS given (id), LATERAL (
    SELECT * FROM job_edges
    WHERE awaited_id = given.id AND awaited_id IS NOT NULL AND state = 'waiting' AND on_failure = 'only'
        AND (SELECT true FROM staged_jobs_scheduled AS job WHERE job.id = given.id AND (job_name = '{MARKER}') IS TRUE)
    OFFSET 0) AS edge
LIMIT {MOST_ALARMED}
"""


def alarmed(connection: Connection, ids: Iterable[int]) -> list[Edge]:
    """Read the waiting edges, up to `MOST_ALARMED`, of children that run once a flow has a dead member.

    Args:
        ids: Jobs that are held by a dead one; only markers count.
    """
    return [Edge._make(row) for row in connection.execute(ALARMED, {"ids": id_array(ids)})]


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
# If a retry has blocked a child again since, the locked version is one that the update's snapshot does not see.
IDLE = f"""
WITH seen AS MATERIALIZED (
    SELECT child_id, parent_id FROM job_edges AS edge
    WHERE child_id = ANY (%(ids)s::bigint[]) AND {CHILD_WAITS} AND NOT {_IS_BLOCKED} LIMIT %(most)s
), locked AS MATERIALIZED (
    SELECT edge.ctid FROM seen, LATERAL (
        SELECT ctid FROM job_edges
        WHERE child_id = seen.child_id AND parent_id = seen.parent_id AND state = 'waiting'
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
