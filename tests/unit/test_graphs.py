"""Graphs of flows: names, order and cycles, checked before anything is sent."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from drain import Flow, StageError
from drain.jobs.graphs import _ordered


def refusal(flow: Flow) -> str:
    with pytest.raises(StageError) as caught:
        next(flow._conversation())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_cycle_is_printed() -> None:
    flow = Flow("docs")
    flow.add("a", "m.f", after="c")
    flow.add("b", "m.f", after="a")
    flow.add("c", "m.f", after="b")
    flow.add("d", "m.f", after="c")
    found = refusal(flow)
    assert found.startswith("nodes of flow 'docs' wait for each other: ")
    assert found.endswith(("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c"))


def test_a_description_has_a_limit() -> None:
    Flow("docs", description="é" * 4096)
    with pytest.raises(StageError, match="description must have at most 4,096 characters, not 4,097"):
        Flow("docs", description="x" * 4097)


def test_a_flow_and_its_nodes_need_names() -> None:
    with pytest.raises(StageError, match="the name of a flow must be a string, not None"):
        Flow(None)  # type: ignore[arg-type]
    with pytest.raises(StageError, match="the name of a node must be a string, not None"):
        Flow("docs").add(None, "m.f")  # type: ignore[arg-type]


def test_bad_graphs_are_one_clear_line() -> None:
    flow = Flow("docs")
    flow.add("a", "m.f", after=["b"])
    assert refusal(flow) == "node 'a' waits for 'b', which flow 'docs' does not have"
    flow.add("b", "m.f", run_at=datetime(2030, 1, 1))  # noqa: DTZ001
    assert refusal(flow).startswith("node 'b' of flow 'docs': run_at has no time zone")
    for name, words in {
        "a": "flow 'docs' already has a node 'a'",
        "": "1 to 255",
        "x.y": "must be a text without dots",
    }.items():
        with pytest.raises(StageError, match=words):
            flow.add(name, "m.f")
    for option in ("flow", "node", "idempotency_key", "idempotency_period"):
        with pytest.raises(StageError, match=rf"Flow.add\(\) does not accept {option}=: leave it out"):
            flow.add("c", "m.f", **{option: 1})  # type: ignore[arg-type]
    with pytest.raises(StageError, match="cannot be part of another"):
        flow.add_flow("sub", Flow("empty"))
    with_callback = Flow("inner", on_dead="m.f")
    with_callback.add("a", "m.f")
    with pytest.raises(StageError, match="cannot be part of another"):
        flow.add_flow("sub", with_callback)
    with pytest.raises(TypeError, match=r"Flow.add\(\) got an unexpected option 'colour'"):
        flow.add("c", "m.f", colour="red")  # type: ignore[call-arg]


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from("abcdefgh"))))
def test_a_graph_is_ordered_or_its_cycle_printed(graph: dict[str, set[str]]) -> None:
    known = {name: waits & graph.keys() for name, waits in graph.items()}
    try:
        ordered = list(_ordered("any", {name: sorted(waits) for name, waits in known.items()}))
    except StageError as error:
        cycle = str(error).rpartition(": ")[2].split(" -> ")
        assert cycle[0] == cycle[-1]
        assert all(parent in known[child] for parent, child in pairwise(cycle))
    else:
        assert sorted(ordered) == sorted(known)
        assert all(ordered.index(parent) < ordered.index(child) for child in known for parent in known[child])
