"""Flows of bulk runs: copied rows become members, each after its predecessors."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence

import pytest

from drain.database.postgres import Connection
from drain.errors import StageError
from drain.tables import bulk
from drain.tables.bulk_flows import NewFlow
from tests.flows import flows
from tests.helpers import connected, query

Copy = Callable[..., int]
Graph = Mapping[str, Sequence[str]]


@pytest.fixture
def copy(database_url: str) -> Copy:
    """Function that stages a graph, or rows without names, as a run; returns the flow's id."""

    def act(
        graph: Graph | int, *, events: Sequence[str] = (), rate: float | None = None, **options: str
    ) -> int:
        rows = (
            [[str(number)] for number in range(graph)]
            if isinstance(graph, int)
            else [[name, name, json.dumps(after)] for name, after in graph.items()]
        )
        text = io.StringIO()
        csv.writer(text).writerows(["m.f", json.dumps([row[0]]), *row[1:]] for row in rows)
        names = ["job_name", "job_args", *(() if isinstance(graph, int) else ("node", "after"))]
        callbacks = {event: {"job_name": f"m.{event}", "job_args": [event]} for event in events}
        flow = NewFlow(options={"name": "bulk"}, callbacks=callbacks, **options)
        connection: Connection = connected(database_url)
        bulk.begin(connection, "run", None)
        with bulk.staging(connection, "run", names, rows_per_second=rate, flow=flow) as copying:
            copying.write(text.getvalue().encode(), len(rows))
        return copying.flow or 0

    return act


def edges(url: str) -> set[tuple[str, str, str]]:
    """Edges between nodes, by name; all go down to a smaller id."""
    found = query(
        url,
        "SELECT child.node, parent.node, edge.on_failure FROM job_edges AS edge JOIN job_edges AS child "
        "ON child.parent_id = edge.child_id AND child.node IS NOT NULL JOIN job_edges AS parent "
        "ON parent.parent_id = edge.parent_id AND parent.node IS NOT NULL WHERE edge.parent_id < edge.child_id",
    )
    return {(child, parent, choice) for child, parent, choice in found}


def test_rows_become_members_and_callbacks_run_once_they_have_ended(
    database_url: str, redis_url: str, copy: Copy
) -> None:
    flow = copy(3, events=["success", "complete", "dead"])
    with flows(database_url, redis_url) as run:
        assert run.progress(flow) == (3, 0, 0, 3, "running")
        success, complete, dead = query(database_url, "SELECT on_success, on_complete, on_dead FROM flows")[0]
        members = [id_ for (id_,) in query(database_url, "SELECT id FROM staged_jobs WHERE job_name = 'm.f'")]
        run.look()
        run.die(members[0])
        run.finish(*members[1:])
        run.look()
        assert run.states(success, complete, dead) == ["blocked", "waiting", "waiting"]
        run.retry(members[0])
        run.finish(members[0])
        run.look()
        assert run.state(success) == "waiting"


def test_nodes_wait_for_the_nodes_they_name(database_url: str, redis_url: str, copy: Copy) -> None:
    flow = copy(
        {"end": ["left", "right", "left"], "left": ["start"], "right": ["start"], "start": [], "alone": []},
        on_failure="hold",
    )
    expected = {("end", "left"), ("end", "right"), ("left", "start"), ("right", "start")}
    assert edges(database_url) == {(*pair, "hold") for pair in expected}
    with flows(database_url, redis_url) as run:
        ids = dict(query(database_url, "SELECT job_args ->> 0, id FROM staged_jobs WHERE job_name = 'm.f'"))
        nodes = dict(query(database_url, "SELECT node, parent_id FROM job_edges WHERE node IS NOT NULL"))
        assert ids == nodes
        for wave in (["start", "alone"], ["left", "right"], ["end"]):
            run.look()
            assert {run.state(id_) for id_ in ids.values()} <= {"finished", "blocked", "waiting"}
            assert [name for name in ids if run.state(ids[name]) == "waiting"] == sorted(
                wave, key=list(ids).index
            )
            run.finish(*(ids[name] for name in wave))
        run.look()
        assert run.progress(flow) == (5, 5, 0, 0, "finished")


def test_a_chain_of_thousands_listed_backwards_is_staged_in_order(database_url: str, copy: Copy) -> None:
    copy({f"n{number}": [f"n{number + 1}"] if number < 5000 else [] for number in range(5001)})
    assert len(edges(database_url)) == 5000


@pytest.mark.parametrize("graph", [3, {"a": [], "b": ["a"]}])
def test_jobs_of_a_flow_come_due_at_a_rate(database_url: str, copy: Copy, graph: Graph | int) -> None:
    copy(graph, rate=0.001)
    starts = "SELECT coalesce(starts_at, scheduled_at) FROM staged_jobs WHERE job_name = 'm.f' ORDER BY 1"
    first, second = (at for (at,) in query(database_url, starts)[:2])
    assert (second - first).total_seconds() == pytest.approx(1000)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "nodes wait for each other: "),
        ({"a": ["a"]}, "nodes wait for each other: a -> a"),
        ({"a": [], "b": ["nope"]}, "node 'b' waits for 'nope', which no row has"),
        ({"a" * 256: []}, "node must have 1 to 255 characters"),
    ],
)
def test_a_bad_graph_is_refused_in_one_line_and_nothing_is_staged(
    database_url: str, copy: Copy, graph: Graph, words: str
) -> None:
    with pytest.raises(StageError) as caught:
        copy(graph, events=["success"])
    assert str(caught.value).startswith("nothing was staged")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    found = "SELECT id FROM staged_jobs UNION ALL SELECT id FROM flows UNION ALL SELECT nullif(rows, 0) FROM bulk_runs"
    assert query(database_url, found) == [(None,)]


def test_a_run_without_rows_stages_no_flow_and_can_be_repeated(database_url: str, copy: Copy) -> None:
    assert copy(0, events=["success"]) == 0
    assert query(database_url, "SELECT id FROM staged_jobs") == []
    assert copy(1, events=["success"]) > 0
