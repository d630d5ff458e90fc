"""`drain flow forecast`: the range of a flow's end, or the reason why there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from drain.tables import flow_pauses
from tests.database.test_flow_commands import Operated, words_of
from tests.flows import flows
from tests.helpers import query

# Jobs of ten seconds that waited two for a worker, of a process that runs `at_once` at a time.
_FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, finished_by, attempts, fencing_token)
SELECT nextval('staged_jobs_id_seq'), %s, '[]', '{}', 'default', 0, at, at, at - interval '2 s', at,
    at + interval '10 s', 'web-1:1:c0ffee', 1, 1
FROM generate_series(0, %s - 1) AS ids (number), LATERAL (
    SELECT now() - interval '1 day' + number / %s::integer * interval '10 s' AS at) AS moment
"""


@pytest.fixture
def op(database_url: str, redis_url: str) -> Iterator[Operated]:
    with flows(database_url, redis_url) as jobs:
        jobs.look()
        yield Operated(jobs, redis_url)


def forecast(op: Operated, flow: int, workers: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(op.done(f"forecast {flow} --workers {workers} --json"))
    return found


def test_a_flow_ends_after_its_longest_path_and_at_the_latest_after_its_work(op: Operated) -> None:
    query(op.jobs.url, _FINISHED, "m.f", 20, 1)
    flow = op.start(name="etl")
    (first, _) = op.chain("a", "b", flow=flow)
    op.stage(flow=flow, node="c")
    found = forecast(op, flow)
    assert [each["name"] for each in found["path"]] == ["a", "b"]
    assert (found["earliest_seconds"], found["latest_seconds"]) == pytest.approx((20, 24 + 30))
    assert forecast(op, flow, workers=2)["latest_seconds"] == pytest.approx(24 + 15)
    query(op.jobs.url, "INSERT INTO queues (queue, running) VALUES ('default', 1)")
    assert forecast(op, flow, workers=2)["latest_seconds"] == pytest.approx(24 + 30)
    lines = words_of(op.done("forecast etl --workers 1"))
    assert lines[:3] == [f"flow {flow} etl: 3 unfinished members", "path a -> b", "ends in 20s to 54s"]

    op.jobs.finish(first)
    op.jobs.look()
    found = forecast(op, flow)
    assert (found["earliest_seconds"], found["latest_seconds"]) == pytest.approx((10, 12 + 20))


def test_a_process_that_runs_several_jobs_at_a_time_needs_less_time(op: Operated) -> None:
    query(op.jobs.url, _FINISHED, "m.f", 20, 4)
    flow = op.start()
    for _ in range(8):
        op.stage(flow=flow)
    assert forecast(op, flow)["latest_seconds"] == pytest.approx(12 + 80 / 4)


def test_sleeping_running_and_unneeded_members_count_as_such(op: Operated) -> None:
    query(op.jobs.url, _FINISHED, "m.f", 20, 1)
    flow = op.start()
    sleeps, runs = op.stage(flow=flow, node="sleeps"), op.stage(flow=flow, node="runs")
    op.stage(flow=flow, node="rescue", after=[[sleeps, "only"]])
    op.jobs.look()
    op.jobs.move(sleeps, runs)
    query(
        op.jobs.url,
        "UPDATE inflight_jobs SET next_run_at = '9999-12-29Z', claimed_at = now() WHERE id = %s",
        sleeps,
    )
    query(
        op.jobs.url,
        "INSERT INTO job_waits (job_id, name, deadline, fencing_token) VALUES (%s, 'a', now() + interval '1 hour', 1)",
        sleeps,
    )
    query(
        op.jobs.url,
        "UPDATE inflight_jobs SET claimed_at = now() - interval '5 s', lease_expires_at = now() + interval '1 day' "
        "WHERE id = %s",
        runs,
    )
    found = forecast(op, flow)
    assert [each["name"] for each in found["path"]] == ["sleeps"]
    assert (found["earliest_seconds"], found["latest_seconds"]) == pytest.approx((3610, 3612 + 20), abs=60)

    query(op.jobs.url, "UPDATE inflight_jobs SET claimed_at = now() - interval '1 hour' WHERE id = %s", runs)
    assert "no forecast: node runs has run for 1h" in op.run(f"forecast {flow} --workers 1").stderr
    query(op.jobs.url, "UPDATE job_waits SET event = 'approval'")
    assert op.run(f"forecast {flow} --workers 1").stderr.endswith("node sleeps waits for an event\n")


def test_an_unknown_end_is_one_line(op: Operated) -> None:
    outside = op.stage()
    flow = op.start(name="etl")

    def reason(words: str = "--workers 1") -> str:
        result = op.run(f"forecast {flow} {words}")
        assert result.exit_code == 1, result.output
        return str(result.stderr.partition("no forecast: ")[2].rstrip())

    member = op.stage(flow=flow, node="a")
    assert reason() == "fewer than 5 jobs m.f have finished in queue default recently"
    query(op.jobs.url, _FINISHED, "m.f", 20, 1)
    assert reason("") == "queue default has no live workers: give --workers"
    op.stage(flow=flow, node="b", after=[member, outside])
    op.jobs.look()
    assert reason() == "node b waits for a job outside the flow"
    with op.jobs.connection.transaction():
        flow_pauses.pause(op.jobs.connection, flow)
    assert reason() == f"flow {flow} etl is paused"
    op.done(f"resume {flow}")
    op.jobs.look()
    op.jobs.die(member)
    op.jobs.look()
    assert reason() == f"flow {flow} etl is failed"
