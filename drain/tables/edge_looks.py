"""Looks of the leader for new edges, and for ended jobs that others wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import CHILD_WAITS, IS_BLOCKED, MARKER


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
# Unless they still run, perhaps with a million rows. OFFSET keeps it a look-up for each, even in an "empty" table.
_RAN = """
SELECT ended.* FROM pg_catalog.unnest(%(running)s::xid8[]) AS ran (xid), LATERAL (
    SELECT {columns} FROM {table} WHERE {xid} = ran.xid AND {condition} OFFSET 0) AS ended
WHERE pg_visible_in_snapshot(ran.xid, pg_current_snapshot())"""


def new_rows(columns: str, table: str, xid: str, condition: str = "true") -> str:
    """Build a query of the rows that the last look did not see, by index, whatever its oldest transaction."""
    return " UNION ALL ".join(
        part.format(columns=columns, table=table, xid=xid, condition=condition) for part in (_LATER, _RAN)
    )


# Of more, only the comparison asks for the ends, page by page.
_MOST_ASKED = 1000
_COLUMNS = "child_id, awaited_id, on_failure, changed_xid"
_NEW_EDGES = f"""
fresh AS MATERIALIZED ({new_rows(_COLUMNS, "job_edges", "changed_xid", "state = 'waiting'")})"""
# Unless the child is blocked and the awaited job unfinished: a later look finds its end. The end of an earlier flow
# leads to members that have died before.
_NEW_CHILDREN = f"""
ARRAY (SELECT DISTINCT child_id FROM fresh WHERE (SELECT count(*) FROM fresh) > {_MOST_ASKED}
    OR (SELECT true FROM staged_jobs_scheduled WHERE id = child_id AND ({IS_BLOCKED}) IS TRUE) IS NULL
    OR coalesce((SELECT true FROM staged_jobs WHERE id = awaited_id LIMIT 1),
        (SELECT true FROM inflight_jobs WHERE id = awaited_id)) IS NULL
    UNION SELECT awaited_id FROM fresh WHERE on_failure = 'only' AND (
        SELECT true FROM staged_jobs_scheduled AS job
        WHERE job.id = awaited_id AND (job_name = '{MARKER}') IS TRUE AND job.xmin <> changed_xid::xid))"""
# If none waited, one that waits now is new. The index would lead over those of open transactions.
LOOK_FOR_EDGES = (
    f"WITH {_NEW_EDGES} SELECT pg_current_snapshot()::text, EXISTS (SELECT FROM fresh), {_NEW_CHILDREN}"
)
_IS_AWAITED = "(SELECT true FROM job_edges WHERE awaited_id = id AND state = 'waiting' LIMIT 1)"
# Once: while a session holds an old snapshot, it steps over all edges met since.
_SOME_WAIT = "(SELECT waits FROM edge)"
LOOK = f"""
WITH {_NEW_EDGES}, edge AS MATERIALIZED (
    SELECT {_WAITS} AS waits
), done AS MATERIALIZED (
    SELECT * FROM ({new_rows("id, superseded_by", "finished_jobs", "finished_xid", _SOME_WAIT)}) AS new
), dead AS MATERIALIZED (
    SELECT * FROM ({new_rows("id", "dead_jobs", "died_xid", _SOME_WAIT)}) AS new
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
