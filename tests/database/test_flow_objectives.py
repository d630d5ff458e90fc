"""The leader measures the flows that the queue file names: each counts once, in time or late."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from drain.enqueuer.objectives import FINISHED, LATE, FlowObjectives
from drain.errors import ConfigError
from drain.read import unfinished_flows
from drain.tables import flow_pauses
from tests.flows import Flows, flows
from tests.helpers import query

FILE = '[flow."nightly import"]\nslo = "90% finish within 10m"\n'
NAME = "nightly import"


@pytest.fixture
def jobs(database_url: str, redis_url: str) -> Iterator[Flows]:
    with flows(database_url, redis_url) as found:
        found.look()
        yield found


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "queues.toml"
    path.write_text(FILE, encoding="utf-8")
    yield path
    for metric in (FINISHED, LATE):
        metric.clear()


@pytest.fixture
def objectives(jobs: Flows, file: Path) -> FlowObjectives:
    found = FlowObjectives(file)
    jobs.enqueuer._unblocker._flow_objectives = found
    found.look(jobs.enqueuer.connection)
    return found


def opened(jobs: Flows, *, name: str | None = NAME, undo: bool = False) -> tuple[int, int]:
    """A flow with one member."""
    (flow,) = jobs.flow(undo=undo, name=name)
    member = jobs.stage(flow=flow)
    jobs.look()
    return flow, member


def age(jobs: Flows, flow: int, minutes: int) -> None:
    query(
        jobs.url,
        "UPDATE flows SET staged_at = staged_at - %s * interval '1 minute' WHERE id = %s",
        minutes,
        flow,
    )


def counts(name: str = NAME) -> tuple[float | None, ...]:
    """Flows that ended within 10 and within 15 minutes, all that ended, and late ones."""
    value = REGISTRY.get_sample_value
    return (
        *(value("drain_flow_seconds_bucket", {"flow": name, "le": le}) for le in ("600.0", "900.0")),
        value("drain_flow_seconds_count", {"flow": name}),
        value("drain_late_flows_total", {"flow": name}),
    )


def test_a_flow_is_observed_when_it_ends(jobs: Flows, objectives: FlowObjectives) -> None:
    assert counts() == (0, 0, 0, 0)
    (in_time, first), (late, second) = opened(jobs), opened(jobs)
    age(jobs, in_time, 9)
    age(jobs, late, 11)
    assert counts() == (0, 0, 0, 0)
    jobs.finish(first, second)
    jobs.look()
    assert jobs.states(in_time, late) == ["finished", "finished"]
    assert counts() == (1, 2, 2, 1)
    objectives.look(jobs.enqueuer.connection)
    assert counts() == (1, 2, 2, 1)


def test_an_unfinished_flow_counts_once_its_time_is_over_and_only_once(
    jobs: Flows, objectives: FlowObjectives
) -> None:
    flow, member = opened(jobs)
    objectives.look(jobs.enqueuer.connection)
    assert counts()[-1] == 0
    age(jobs, flow, 11)
    for _ in range(2):
        objectives.look(jobs.enqueuer.connection)
        assert counts() == (0, 0, 0, 1)
    jobs.finish(member)
    jobs.look()
    objectives.look(jobs.enqueuer.connection)
    assert counts() == (0, 1, 1, 1)


@pytest.mark.parametrize("undo", [False, True])
def test_a_failed_or_undone_flow_is_late_once_its_time_is_over(
    jobs: Flows, objectives: FlowObjectives, undo: bool
) -> None:
    flow, member = opened(jobs, undo=undo)
    jobs.die(member)
    jobs.look()
    if undo:
        ((undo_id,),) = query(jobs.url, "SELECT undone_by FROM flows WHERE id = %s", flow)
        jobs.finish(undo_id)
        jobs.look()
    objectives.look(jobs.enqueuer.connection)
    assert counts() == (0, 0, 0, 0)
    age(jobs, flow, 11)
    objectives.look(jobs.enqueuer.connection)
    assert counts() == (0, 0, 0, 1)


def test_a_failed_flow_that_is_retried_and_finishes_in_time_is_not_late(
    jobs: Flows, objectives: FlowObjectives
) -> None:
    flow, member = opened(jobs)
    jobs.die(member)
    jobs.look()
    objectives.look(jobs.enqueuer.connection)
    jobs.retry(member)
    jobs.finish(member)
    jobs.look()
    assert jobs.state(flow) == "finished"
    assert counts() == (1, 1, 1, 0)


def test_a_cancelled_flow_counts_only_if_its_time_was_over(jobs: Flows, objectives: FlowObjectives) -> None:
    (in_time, first), (late, second), (discarded, third) = opened(jobs), opened(jobs), opened(jobs)
    age(jobs, late, 11)
    objectives.look(jobs.enqueuer.connection)
    jobs.cancel(in_time, first, late, second)
    jobs.die(third)
    jobs.discard(third)
    jobs.look()
    for flow in (in_time, discarded):
        age(jobs, flow, 11)
    objectives.look(jobs.enqueuer.connection)
    assert jobs.states(in_time, late, discarded) == ["cancelled"] * 3
    assert counts() == (0, 0, 0, 1)


def test_a_paused_flow_becomes_late_too(jobs: Flows, objectives: FlowObjectives) -> None:
    flow, _ = opened(jobs)
    with jobs.connection.transaction():
        flow_pauses.pause(jobs.connection, flow)
    age(jobs, flow, 11)
    objectives.look(jobs.enqueuer.connection)
    assert counts()[-1] == 1


def test_only_names_in_the_file_have_labels(jobs: Flows, objectives: FlowObjectives) -> None:
    for name in ("another", None):
        ended, member = opened(jobs, name=name)
        jobs.finish(member)
        late, _ = opened(jobs, name=name)
        age(jobs, late, 11)
        jobs.look()
        assert jobs.state(ended) == "finished"
    objectives.look(jobs.enqueuer.connection)
    shown = {
        sample.labels["flow"]
        for metric in (FINISHED, LATE)
        for found in metric.collect()
        for sample in found.samples
    }
    assert shown == {NAME}
    assert counts() == (0, 0, 0, 0)


def test_without_a_file_no_flow_is_read(jobs: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ended", "late"):
        monkeypatch.delattr(unfinished_flows, name)
    flow, member = opened(jobs)
    jobs.finish(member)
    jobs.look()
    FlowObjectives().look(jobs.enqueuer.connection)
    assert jobs.state(flow) == "finished"
    assert counts() == (None, None, None, None)


def test_the_end_of_a_plain_job_reads_no_flow(
    jobs: Flows, objectives: FlowObjectives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(unfinished_flows, "ended")
    first = jobs.stage()
    second = jobs.stage(first)
    jobs.finish(first)
    jobs.look()
    assert jobs.state(second) == "waiting"


def test_a_new_leader_does_not_count_again_what_is_late(jobs: Flows, objectives: FlowObjectives) -> None:
    late, _ = opened(jobs)
    age(jobs, late, 11)
    objectives.look(jobs.enqueuer.connection)
    objectives.forget()
    objectives.look(jobs.enqueuer.connection)
    assert counts()[-1] == 1
    late, _ = opened(jobs)
    age(jobs, late, 11)
    objectives.look(jobs.enqueuer.connection)
    assert counts()[-1] == 2


def test_a_flow_that_became_late_without_a_leader_counts_at_its_end(
    jobs: Flows, objectives: FlowObjectives
) -> None:
    objectives.forget()
    late, member = opened(jobs)
    age(jobs, late, 11)
    objectives.look(jobs.enqueuer.connection)
    jobs.finish(member)
    jobs.look()
    assert counts() == (0, 1, 1, 1)


def rewrite(file: Path, text: str) -> None:
    before = file.stat().st_mtime_ns
    file.write_text(text, encoding="utf-8")
    os.utime(file, ns=(before + 1, before + 1))


def test_a_changed_file_is_read_again(jobs: Flows, objectives: FlowObjectives, file: Path) -> None:
    late, _ = opened(jobs, name="backup")
    age(jobs, late, 11)
    rewrite(file, '[flow.backup]\nslo = "90% finish within 10m"\n')
    objectives.look(jobs.enqueuer.connection)
    assert (counts(), counts("backup")) == ((None, None, None, None), (0, 0, 0, 0))
    late, _ = opened(jobs, name="backup")
    age(jobs, late, 9)
    objectives.look(jobs.enqueuer.connection)
    assert counts("backup")[-1] == 0
    age(jobs, late, 2)
    objectives.look(jobs.enqueuer.connection)
    assert counts("backup")[-1] == 1


@pytest.mark.parametrize("text", ['[flow.backup]\nslo = "soon"', None])
def test_a_file_that_became_invalid_or_missing_is_reported_once_and_ignored(
    jobs: Flows, objectives: FlowObjectives, file: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if text is None:
        file.unlink()
    else:
        rewrite(file, text)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            objectives.look(jobs.enqueuer.connection)
    (record,) = caplog.records
    assert record.getMessage().startswith("SLOs of flows stay as they were: ")
    assert str(file) in record.getMessage()
    assert counts() == (0, 0, 0, 0)


def test_an_invalid_file_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "queues.toml"
    path.write_text('[flow.backup]\nslo = "99% start within 5s"', encoding="utf-8")
    with pytest.raises(ConfigError, match="flow backup: slo: an SLO is written as '99% finish within 10m'"):
        FlowObjectives(path)


def test_a_refused_measurement_does_not_stop_the_leader(
    jobs: Flows, objectives: FlowObjectives, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unfinished_flows, "ENDED", "SELECT pg_no_such_function()")
    for _ in range(2):
        flow, member = opened(jobs)
        after = jobs.stage(flow)
        jobs.finish(member)
        jobs.look()
        assert jobs.states(flow, after) == ["finished", "waiting"]
    (record,) = caplog.records
    assert record.getMessage() == (
        "drain_flow_seconds is not measured (function pg_no_such_function() does not exist)"
    )
