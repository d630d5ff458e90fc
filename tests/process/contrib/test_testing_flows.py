"""`drain.contrib.testing`: batches and flows in a test's transaction."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import drain
from drain import Dead, Flow, current_job
from drain.contrib.testing import Staged
from drain.jobs import registry


def job(function: Any) -> Any:
    return drain.job(name=f"tests.{function.__name__.strip('<>')}", result="keep", max_attempts=1)(function)


@pytest.fixture(autouse=True)
def no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def staged(connection: psycopg.Connection[Any]) -> Staged:
    return Staged(connection)


def test_a_growing_batch_ends_once_its_last_member_has(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    ran: list[str] = []

    @job
    def load(number: int) -> None:
        ran.append(f"load {number}")

    @job
    def list_files() -> None:
        with drain.psycopg_transaction() as own:
            for number in range(3):
                load.options(flow=current_job().flow).stage(own, number)
        ran.append("list")

    @job
    def report(event: str) -> None:
        found = drain.flow_progress(connection, current_job().flow)
        assert found is not None
        ran.append(f"{event}: {found.finished} of {found.total}, {found.state}")

    with drain.batch(
        connection,
        on_success=(report, ["success"]),
        on_complete=(report, ["complete"]),
        on_dead=(report, ["dead"]),
    ) as batch:
        batch.stage(list_files)
    results = staged.run(check=True)
    assert ran[:4] == ["list", "load 0", "load 1", "load 2"]
    assert sorted(ran[4:]) == ["complete: 4 of 4, finished", "success: 4 of 4, finished"]
    states = [(each.job_name.removeprefix("tests."), each.state) for each in results]
    assert sorted(states) == [
        *(("list_files", "finished"), *[("load", "finished")] * 3),
        *(*[("report", "finished")] * 2, ("report", "superseded")),
    ]
    staged.none()


def test_the_first_death_calls_back_once_and_a_retry_lets_the_batch_succeed(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    ran: list[str] = []
    broken = [1, 2]

    @job
    def load(number: int) -> None:
        if number in broken:
            raise Dead("broken")

    @job
    def note(event: str) -> None:
        ran.append(event)

    with drain.batch(
        connection, on_success=(note, ["success"]), on_complete=(note, ["complete"]), on_dead=(note, ["dead"])
    ) as batch:
        ids = batch.stage_many(load, [(number,) for number in range(4)])
    staged.run()
    assert sorted(ran) == ["complete", "dead"]
    progress = drain.flow_progress(connection, batch)
    assert progress == drain.FlowProgress(4, 2, 2, 0, "running")
    broken.clear()
    for job_id in ids[1:3]:
        staged.force_retry(job_id)
    staged.run(check=True)
    assert sorted(ran) == ["complete", "dead", "success"]
    assert drain.flow_progress(connection, batch) == drain.FlowProgress(4, 4, 0, 0, "finished")


def test_an_empty_batch_calls_back(connection: psycopg.Connection[Any], staged: Staged) -> None:
    ran: list[str] = []

    @job
    def note(event: str) -> None:
        ran.append(event)

    with drain.batch(
        connection, on_success=(note, ["success"]), on_complete=(note, ["complete"]), on_dead=(note, ["dead"])
    ):
        pass
    staged.run(check=True)
    assert sorted(ran) == ["complete", "success"]


def test_nodes_read_results_by_name_also_in_a_sub_flow(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    seen: dict[str, Any] = {}
    answer = job(lambda value: value)

    @job
    def look(label: str) -> None:
        seen[label] = (current_job().flow.node, current_job().results)

    @job
    async def look_in_loop() -> None:
        seen["async"] = ((await current_job().aflow()).node, await current_job().aresults())

    inner = Flow("inner")
    inner.add("x", answer, [1])
    inner.add("y", look, ["inner"], after=["x"])
    flow = Flow("outer")
    before = answer.stage(connection, 0)
    flow.add("a", answer, [2])
    flow.add_flow("sub", inner, after="a")
    flow.add("b", look, ["outer"], after=["a", "sub", before])
    flow.add("c", look_in_loop, after=["sub.x"])
    flow.stage(connection)
    staged.run(check=True)
    assert seen == {
        "inner": ("sub.y", {"x": 1}),
        "outer": ("b", {before: 0, "a": 2}),
        "async": ("c", {"sub.x": 1}),
    }


def test_a_job_outside_has_no_flow(connection: psycopg.Connection[Any], staged: Staged) -> None:
    alone = job(lambda: current_job().flow)
    with drain.batch(connection) as batch:
        pass
    alone.options(after=batch).stage(connection)
    alone.stage(connection)
    results = staged.run()
    assert [each.state for each in results] == ["dead", "dead"]
    assert "is not in a batch or flow: stage without flow=" in str(results[0].error)


def test_on_complete_reads_the_results_of_all_members(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    answer, seen = job(lambda value: value), []

    @job
    def add_up() -> None:
        seen.append(current_job().results)

    with drain.batch(connection, on_complete=add_up) as batch:
        ids = batch.stage_many(answer, [(1,), (2,)])
    staged.run(check=True)
    assert seen == [dict(zip(ids, [1, 2], strict=True))]
