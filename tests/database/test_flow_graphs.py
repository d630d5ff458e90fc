"""Flows in the database: named jobs, their edges, sub-flows, idempotency and growth."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import drain
from drain import After, Flow, IdempotencyConflictError, StagedFlow, StageError
from drain.jobs import registry
from drain.tables.columns import BLOCKED_UNTIL, MARKER
from tests.async_connections import OPENERS, Opener
from tests.helpers import query
from tests.hostility import Place

AT = datetime(2030, 1, 2, 3, tzinfo=UTC)


def edges(url: str, staged: StagedFlow) -> set[tuple[str, str, str]]:
    """Edges between nodes, by name."""
    names = {job_id: name for name, job_id in staged.jobs.items()}
    found = query(url, "SELECT child_id, parent_id, on_failure FROM job_edges WHERE child_id > parent_id")
    return {
        (names[child], names.get(parent, str(parent)), choice)
        for child, parent, choice in found
        if child in names
    }


def diamond(name: str = "docs", **options: Any) -> Flow:
    flow = Flow(name, **options)
    flow.add("end", "m.end", after=["left", After("right", "run")])
    flow.add("left", "m.f", [1], after="start", priority=3)
    flow.add("right", "m.f", kwargs={"n": 2}, after=["start"], on_failure="hold")
    flow.add("start", "m.start", [])
    return flow


DIAMOND = {
    *(
        ("left", "start", "cancel"),
        ("right", "start", "hold"),
        ("end", "left", "cancel"),
        ("end", "right", "run"),
    ),
}


def staged(url: str, flow: Flow) -> StagedFlow:
    with psycopg.connect(url) as connection:
        return flow.stage(connection)


def test_nodes_wait_for_each_other_by_name(database_url: str) -> None:
    found = staged(database_url, diamond(description="of May", on_complete="m.c"))
    assert found.is_new
    assert edges(database_url, found) == DIAMOND
    rows = query(
        database_url,
        "SELECT job_name, job_args, job_kwargs, priority, scheduled_at = %s FROM staged_jobs "
        "WHERE id = ANY (%s)",
        BLOCKED_UNTIL,
        [found.jobs[name] for name in ("start", "left", "right")],
    )
    assert rows == [("m.start", [], {}, 0, False), ("m.f", [1], {}, 3, True), ("m.f", [], {"n": 2}, 0, True)]
    assert query(database_url, "SELECT name, description, on_complete IS NOT NULL FROM flows") == [
        ("docs", "of May", True)
    ]
    nodes = query(
        database_url,
        "SELECT node, parent_id FROM job_edges WHERE child_id = %s AND on_failure = 'hold'",
        found.id,
    )
    assert dict(nodes) == dict(found.jobs)


@pytest.mark.parametrize("opened", OPENERS, ids=lambda opener: opener.__name__)
def test_asynchronous_connections_stage_flows_too(database_url: str, opened: Opener) -> None:
    async def stage() -> list[StagedFlow]:
        async with opened(database_url) as connection:
            flow = diamond(idempotency_key="a", deadline=AT)
            return [await flow.astage(connection), await flow.astage(connection)]

    first, second = asyncio.run(stage())
    assert (first.id, first.is_new, dict(first.jobs)) == (second.id, True, dict(second.jobs))
    assert not second.is_new
    assert edges(database_url, first) == DIAMOND


def test_defaults_reach_each_node(database_url: str) -> None:
    inner = Flow("inner", tag="inner")
    inner.add("a", "m.a")
    flow = Flow("outer", key="customer 7", tag="outer", deadline=AT)
    flow.add("own", "m.f", key="8", tag="own", expires_at=AT + timedelta(1))
    flow.add("b", "m.b")
    flow.add_flow("sub", inner)
    staged(database_url, flow)
    rows = query(
        database_url,
        "SELECT job_name, key, tag, expires_at FROM staged_jobs WHERE job_name <> %s ORDER BY 1",
        MARKER,
    )
    assert rows == [
        *(
            ("m.a", "customer 7", "inner", AT),
            ("m.b", "customer 7", "outer", AT),
            ("m.f", "8", "own", AT + timedelta(1)),
        ),
    ]


def test_a_deadline_may_count_from_when_the_flow_is_staged(database_url: str) -> None:
    flow = Flow("daily", deadline=timedelta(hours=1))
    flow.add("a", "m.a", key=lambda: "computed")
    staged(database_url, flow)
    ((expires_at, key),) = query(
        database_url, "SELECT expires_at, key FROM staged_jobs WHERE job_name = 'm.a'"
    )
    assert query(database_url, "SELECT expires_at FROM flows") == [(expires_at,)]
    assert timedelta(minutes=55) < expires_at - datetime.now(UTC) <= timedelta(hours=1)
    assert key == "computed"


def test_a_sub_flow_is_its_nodes_and_a_marker(database_url: str) -> None:
    innermost = Flow("innermost")
    innermost.add("x", "m.x")
    inner = diamond()
    inner.add_flow("more", innermost, after="start")
    flow = Flow("outer")
    flow.add("before", "m.f")
    flow.add_flow("sub", inner, after=[After("before", "hold")])
    flow.add("after", "m.f", after="sub")
    found = staged(database_url, flow)
    inside = ["start", "left", "right", "end", "more.x", "more"]
    assert edges(database_url, found) == {
        ("sub.start", "before", "hold"),
        *((f"sub.{child}", f"sub.{parent}", choice) for child, parent, choice in DIAMOND),
        ("sub.more.x", "sub.start", "cancel"),
        ("sub.more", "sub.more.x", "cancel"),
        *(("sub", f"sub.{name}", "cancel") for name in inside),
        ("after", "sub", "cancel"),
    }
    markers = query(database_url, "SELECT id FROM staged_jobs WHERE job_name = %s ORDER BY id", MARKER)
    assert [job_id for (job_id,) in markers] == sorted((found.id, found.jobs["sub"], found.jobs["sub.more"]))
    assert query(database_url, "SELECT id FROM flows") == [(found.id,)]


def test_jobs_wait_for_a_flow_and_nodes_for_earlier_jobs(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        before = drain.stage(connection, "m.f")
        with drain.batch(connection) as batch:
            pass
        flow = Flow("docs")
        flow.add("a", "m.a", after=[before, batch])
        found = flow.stage(connection)
        later = drain.stage(connection, "m.f", after=found)
    assert edges(database_url, found) == {("a", str(before), "cancel"), ("a", str(batch.id), "cancel")}
    assert query(database_url, "SELECT parent_id FROM job_edges WHERE child_id = %s", later) == [(found.id,)]


def test_a_registered_job_may_choose_nodes(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", dict(registry._jobs))
    job = drain.job(name="flows.pack", after=lambda name: name)(lambda name: None)
    flow = Flow("docs")
    flow.add("a", "m.a")
    flow.add("b", job, ["a"])
    assert edges(database_url, staged(database_url, flow)) == {("b", "a", "cancel")}


def test_an_empty_flow_is_staged(database_url: str) -> None:
    found = staged(database_url, Flow("empty"))
    assert dict(found.jobs) == {}
    assert query(database_url, "SELECT id FROM staged_jobs") == [(found.id,)]


def test_an_idempotency_key_stages_a_flow_once(database_url: str) -> None:
    flow = diamond(idempotency_key="May", on_dead="m.d", deadline=timedelta(1))
    first = staged(database_url, flow)
    second = staged(database_url, flow)
    assert first.is_new
    assert second == StagedFlow(first.id, False, first.jobs)
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(6,)]
    longer, rewired = diamond(idempotency_key="May"), Flow("docs", idempotency_key="May")
    longer.add("more", "m.f")
    rewired._added = {**flow._added, "end": flow._added["end"]._replace(edges={"left": "run"})}
    words = "'May' belongs to a job or another flow: roll back"
    for other in (longer, rewired):
        with psycopg.connect(database_url) as connection:
            with pytest.raises(IdempotencyConflictError, match=words):
                other.stage(connection)
            connection.rollback()
    with pytest.raises(StageError, match="idempotency_period needs an idempotency_key"):
        Flow("docs", idempotency_period=timedelta(1))


def test_the_key_of_a_flow_outlives_it(database_url: str) -> None:
    flow = diamond(idempotency_key="May")
    first = staged(database_url, flow)
    for table in ("staged_jobs", "job_edges", "flows"):
        # As retention does with ended jobs, and later with their edges.
        query(database_url, f"WITH gone AS (DELETE FROM {table} RETURNING 1) SELECT count(*) FROM gone")
        again = staged(database_url, flow)
        assert (again.id, again.is_new, again.jobs) == (first.id, False, {})


@pytest.mark.parametrize("kind", ["chain", "flat"])
def test_a_flow_of_many_nodes_takes_few_statements(
    database_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, statements = 30_000, 0
    flow = Flow("many")
    for n in reversed(range(count)):
        after = [f"n{n - 1}"] if n and kind == "chain" else None
        flow.add(f"n{n}", ("flows.f", "flows.g")[n % 2], [n], after=after)
    execute = drain.jobs.executors.execute

    def counting(*given: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*given)

    monkeypatch.setattr("drain.jobs.executors.execute", counting)
    found = staged(database_url, flow)
    assert statements == 4
    rows = query(
        database_url, "SELECT id, (job_args ->> 0)::int FROM staged_jobs WHERE job_name <> %s", MARKER
    )
    assert {f"n{n}": job_id for job_id, n in rows} == dict(found.jobs)
    assert len(edges(database_url, found)) == (count - 1 if kind == "chain" else 0)


def test_a_node_is_added_by_name_to_a_running_flow(database_url: str) -> None:
    found = staged(database_url, diamond())
    with psycopg.connect(database_url) as connection:
        more = drain.stage(connection, "m.f", flow=found, node="more", after=["start", After("left", "run")])
        many = drain.stage_many(connection, "m.f", [()], flow=found.id, after="more")
        computed = drain.stage(connection, "m.f", ["more"], flow=found, after=lambda name: [name, more])
    rows = query(
        database_url,
        "SELECT child_id, parent_id, on_failure FROM job_edges WHERE child_id >= %s ORDER BY 1, 2",
        more,
    )
    assert rows == [
        *((more, found.jobs["start"], "cancel"), (more, found.jobs["left"], "run")),
        *((many[0], more, "cancel"), (computed, more, "cancel")),
    ]
    with (
        psycopg.connect(database_url) as connection,
        pytest.raises(psycopg.DatabaseError, match="has no node 'lost'"),
    ):
        drain.stage(connection, "m.f", flow=found, after="lost")
    with (
        psycopg.connect(database_url) as connection,
        pytest.raises(psycopg.IntegrityError, match=r"of the nodes \{left\}"),
    ):
        drain.stage(connection, "m.f", flow=found, node="left")
    with psycopg.connect(database_url) as connection:
        later = drain.stage(connection, "m.f")
        with pytest.raises(psycopg.DatabaseError, match="not in the flow"):
            drain.stage(connection, "m.f", flow=found, after=later)


def test_an_application_needs_only_its_role(place: Place) -> None:
    flow = diamond(idempotency_key="a", on_success="m.s")
    with place.connected("application") as application, application.transaction():
        found = flow.stage(application)
        assert flow.stage(application).jobs == found.jobs
        drain.stage(application, "m.f", flow=found, after="start")
    with place.connected("inspection") as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute("SELECT drain_node(%s, 'start')", [found.id])


def test_another_role_finds_no_node(place: Place) -> None:
    with place.connected("application") as application, application.transaction():
        found = diamond().stage(application)
    words = f"flow {found.id} of this role has no node 'start'"
    with place.connected("owner") as owner, pytest.raises(psycopg.errors.ForeignKeyViolation, match=words):
        owner.execute("SELECT drain_node(%s, 'start')", [found.id])
