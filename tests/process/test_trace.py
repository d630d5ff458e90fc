"""`drain trace` shows when a job passed which process."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis

from drain.__main__ import main
from drain.wire import Traces
from tests import jobs_in_batches as jobs
from tests.helpers import NAMESPACE, leading, wait_until
from tests.worker_processes import Yard

PROCESSES = ["staged", "moved", "pushed", "popped", "claimed", "begun", "ended", "finished"]


def hops(found: dict[str, Any]) -> list[str]:
    return [hop["hop"] for hop in found["hops"]]


def trace(yard: Yard, *words: str) -> Result:
    return CliRunner().invoke(main, ["trace", *words], env=yard.env() | {"COLUMNS": "80"})


def traced(yard: Yard, job_id: int) -> dict[str, Any]:
    result = trace(yard, str(job_id), "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_an_untraced_job_shows_the_times_of_its_tables_and_a_hint(yard: Yard) -> None:
    with yard.working():
        (job_id,) = yard.pushed(jobs.note, "a")
        yard.wait_for("finished_jobs", [job_id])
    assert hops(traced(yard, job_id)) == ["staged", "moved", "claimed", "finished"]
    result = trace(yard, str(job_id))
    assert (result.exit_code, "drain run --trace" in result.stderr) == (0, True)
    lines = result.stdout.splitlines()
    assert lines[0] == f"job {job_id}, tests.jobs_in_batches.note, finished"
    assert all(len(line) <= 80 for line in lines)


def test_a_traced_job_has_each_hop_in_its_order(yard: Yard) -> None:
    with leading(yard.env(), "--trace"), yard.working(DRAIN_TRACE="1"):
        (job_id,) = yard.stage(jobs.note, "a")
        yard.wait_for("finished_jobs", [job_id])
        # Noted after the commit of the finish.
        wait_until(lambda: len(traced(yard, job_id)["hops"]) == len(PROCESSES))
        found = traced(yard, job_id)
    # A job may begin before its push has been answered.
    assert sorted(hops(found)) == sorted(PROCESSES)
    in_the_worker = [hop for hop in hops(found) if hop in ("popped", "begun", "ended")]
    assert in_the_worker == ["popped", "begun", "ended"]
    total = sum(hop["step_seconds"] for hop in found["hops"])
    assert total == pytest.approx(found["hops"][-1]["seconds"])
    assert found["noted"] is True


def test_an_isolated_job_begins_after_its_claim(yard: Yard) -> None:
    with yard.working(DRAIN_TRACE="1"):
        (job_id,) = yard.pushed(jobs.isolated, "a")
        yard.wait_for("finished_jobs", [job_id])
        wait_until(lambda: "ended" in hops(traced(yard, job_id)))
    in_the_worker = [hop for hop in hops(traced(yard, job_id)) if hop in ("popped", "claimed", "begun")]
    assert in_the_worker == ["popped", "claimed", "begun"]


@pytest.mark.parametrize(
    "written",
    [{"pushed": "soon"}, {"pushed": "nan"}, {"pushed": "1e300"}, {b"\xff": "1"}, {"\x1b[31m": "1"}],
    ids=repr,
)
def test_unexpected_values_in_a_trace_are_ignored(yard: Yard, client: Redis, written: dict[Any, Any]) -> None:
    (job_id,) = yard.stage(jobs.note, "a")
    client.hset(f"drain:trace:{NAMESPACE}:{job_id}", mapping=written)
    assert hops(traced(yard, job_id)) == ["staged"]


def test_a_redis_outage_loses_only_the_trace(redis_url: str, client: Redis) -> None:
    traces = Traces("redis://127.0.0.1:1/0", NAMESPACE)
    traces.note([(1, {"pushed": 1.5})])
    traces = Traces(redis_url, NAMESPACE)
    traces.note([(1, {"pushed": 1.5}), (2, {"begun": 2.5})])
    traces.note([(1, {"begun": 3.0})])
    assert traces.read(1) == {
        "pushed": datetime.fromtimestamp(1.5, UTC),
        "begun": datetime.fromtimestamp(3.0, UTC),
    }
    assert traces.read(3) == {}
    assert 3590 < client.ttl(f"drain:trace:{NAMESPACE}:2") <= 3600


def test_an_unknown_id_is_reported_on_one_line(yard: Yard) -> None:
    result = trace(yard, "99")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: no job has the id 99")
