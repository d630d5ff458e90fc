"""Flows of bulk runs: the rows that were put aside become the members of one flow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

from drain.database.postgres import Connection, fetch_one
from drain.errors import StageError
from drain.tables import flows, staged

T = TypeVar("T", int, str)
# Columns of the rows of a graph: a name, and a JSON array of names.
GRAPH = NODE, AFTER = ("node", "after")
# As in the schema.
LONGEST_NODE = 255
_SHOWN_NODES = 20

_JOIN_ALL = """
WITH members AS ({insert} RETURNING id) SELECT drain_join(%(flow)s::bigint, pg_catalog.array_agg(id), NULL) FROM members
"""

_WAITS = f"{AFTER} <> '[]'"
_NAMES = f"""
ALTER TABLE {staged.ASIDE} ADD COLUMN place bigint GENERATED ALWAYS AS IDENTITY, ADD COLUMN {NODE} text NOT NULL,
    ADD COLUMN {AFTER} jsonb NOT NULL
"""
# Named after the rule that a row breaks.
_UNIQUE = f"CREATE UNIQUE INDEX the_name_of_a_node_must_be_unique ON {staged.ASIDE} ({NODE})"
_EDGES = f"""
CREATE TEMPORARY TABLE drain_bulk_edges ON COMMIT DROP AS
SELECT child.place AS child, parent.place AS parent, child.{NODE} AS node, waits.name
FROM {staged.ASIDE} AS child CROSS JOIN LATERAL jsonb_array_elements_text(child.{AFTER}) AS waits (name)
    LEFT JOIN {staged.ASIDE} AS parent ON parent.{NODE} = waits.name
WHERE child.{_WAITS}
"""
_UNKNOWN = "SELECT node, name FROM pg_temp.drain_bulk_edges WHERE parent IS NULL LIMIT 1"
_READ_EDGES = "SELECT child, parent FROM pg_temp.drain_bulk_edges"
_NAME = f"SELECT {NODE} FROM {staged.ASIDE} WHERE place = %s"
# Rows without edges come first.
_ORDER = "CREATE TEMPORARY TABLE drain_bulk_order (place bigint, turn bigint) ON COMMIT DROP"
_COPY_ORDER = "COPY pg_temp.drain_bulk_order FROM STDIN"
_TURNS = f"""
CREATE TEMPORARY TABLE drain_bulk_turns ON COMMIT DROP AS
SELECT place, row_number() OVER (ORDER BY turn NULLS FIRST, place) AS turn
FROM {staged.ASIDE} LEFT JOIN pg_temp.drain_bulk_order USING (place)
"""
_SORTED = f"""
(SELECT rows.* FROM {staged.ASIDE} AS rows JOIN pg_temp.drain_bulk_turns USING (place) ORDER BY turn) AS ordered
"""
_IDS = "CREATE TEMPORARY TABLE drain_bulk_ids (place bigint, id bigint) ON COMMIT DROP"
# Ids ascend in the order of the insert.
_INSERT = """
WITH members AS ({insert} RETURNING id)
INSERT INTO pg_temp.drain_bulk_ids SELECT place, id
FROM (SELECT id, row_number() OVER (ORDER BY id) AS turn FROM members) AS numbered
    JOIN pg_temp.drain_bulk_turns USING (turn)
"""
_JOIN = f"""
SELECT drain_join(%(flow)s::bigint, pg_catalog.array_agg(ids.id ORDER BY ids.id),
    pg_catalog.array_agg(rows.{NODE} ORDER BY ids.id))
FROM pg_temp.drain_bulk_ids AS ids JOIN {staged.ASIDE} AS rows USING (place)
"""
_WAIT = """
SELECT drain_after(pg_catalog.array_agg(child.id), pg_catalog.array_agg(parent.id),
    pg_catalog.array_agg(%(on_failure)s::text))
FROM pg_temp.drain_bulk_edges AS edge JOIN pg_temp.drain_bulk_ids AS child ON child.place = edge.child
    JOIN pg_temp.drain_bulk_ids AS parent ON parent.place = edge.parent
HAVING count(*) > 0
"""


@dataclass(frozen=True, kw_only=True)
class NewFlow:
    """Flow of a run's jobs.

    Attributes:
        options: Of `drain_flow()`.
        callbacks: Columns of a job by event: success, complete, dead.
        node: Column of the run's source that names its nodes; None without a graph.
        after: Column of the names that a node waits for.
        on_failure: Of the edges between its nodes.
    """

    options: Mapping[str, Any]
    callbacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    node: str | None = None
    after: str | None = None
    on_failure: str = "cancel"


def make(connection: Connection, flow: NewFlow) -> int:
    """Make the flow with its callbacks, in the open transaction; return its id."""
    flow_id, _ = fetch_one(connection, flows.OPEN, {"options": json.dumps(flow.options)})
    if flow.callbacks:
        jobs = [
            {"job_args": [], "job_kwargs": {}, **columns, "event": event}
            for event, columns in flow.callbacks.items()
        ]
        connection.execute(flows.CALLBACKS, {"flow": flow_id, "jobs": json.dumps(jobs)})
    return int(flow_id)


def name_rows(connection: Connection) -> None:
    """Add the columns of a graph to the empty temporary table."""
    connection.execute(_NAMES)


def stage(
    connection: Connection, names: Sequence[str], flow: NewFlow, *, rows_per_second: float | None
) -> int:
    """Stage the temporary table's rows as members of a new flow, in its transaction; return the flow's id.

    Args:
        names: Columns of the rows; with NODE and AFTER, each waits for the nodes that it names.

    Raises:
        StageError: A row waits for an unknown node, or rows wait for each other.
    """
    flow_id = make(connection, flow)
    given = {"flow": flow_id, "rate": rows_per_second, "on_failure": flow.on_failure}
    if NODE not in names:
        insert = staged.put_aside_insert(names, rows_per_second)
        connection.execute(_JOIN_ALL.format(insert=insert).encode(), given)
        return flow_id
    _arrange(connection)
    columns = [name for name in names if name not in GRAPH]
    insert = staged.put_aside_insert(columns, rows_per_second, blocked=_WAITS, source=_SORTED)
    connection.execute(_IDS)
    connection.execute(_INSERT.format(insert=insert).encode(), given)
    connection.execute("ANALYZE pg_temp.drain_bulk_ids")
    connection.execute(_JOIN, given)
    connection.execute(_WAIT, given)
    return flow_id


def _arrange(connection: Connection) -> None:
    """Give each row its turn, predecessors first."""
    connection.execute(_UNIQUE)
    connection.execute(f"ANALYZE {staged.ASIDE}".encode())
    connection.execute(_EDGES)
    found = connection.execute(_UNKNOWN).fetchone()
    if found is not None:
        raise unknown(*found)
    connection.execute("ANALYZE pg_temp.drain_bulk_edges")
    edges = connection.execute(_READ_EDGES).fetchall()
    order = ordered(edges, lambda place: str(fetch_one(connection, _NAME, (place,))[0]))
    connection.execute(_ORDER)
    with connection.cursor() as cursor, cursor.copy(_COPY_ORDER) as copy:
        for turn, place in enumerate(order):
            copy.write_row((place, turn))
    connection.execute(_TURNS)
    connection.execute("ANALYZE pg_temp.drain_bulk_turns")


def ordered(edges: Iterable[tuple[T, T]], name: Callable[[T], str]) -> list[T]:
    """Return the nodes of (child, parent) edges, parents first, or raise StageError; `name` names a node."""
    graph: TopologicalSorter[T] = TopologicalSorter()
    for child, parent in edges:
        graph.add(child, parent)
    try:
        return list(graph.static_order())
    except CycleError as error:
        cycle = [name(node) for node in error.args[1][:_SHOWN_NODES]]
        cycle += ["..."] if len(error.args[1]) > _SHOWN_NODES else []
        raise StageError(
            f"nothing was staged, because nodes wait for each other: {' -> '.join(cycle):.1000}"
        ) from None


def unknown(node: str, name: str) -> StageError:
    """Explain that a node waits for an unknown one."""
    return StageError(
        f"nothing was staged, because node {node!r:.100} waits for {name!r:.100}, which no row has"
    )
