"""The memory of measures: what one process has counted, another one reads, and a third one goes on from."""

import os
import random
import signal
import threading
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from drain.jobs.objectives import RUN_BUCKETS
from drain.jobs.options import JobOptions
from drain.metrics import NOT_REGISTERED, OTHERS
from drain.tables.claims import Claim
from drain.workers.errors import Dead
from drain.workers.execution.decision import DEAD, FINISHED, RETRYING, STALE
from drain.workers.execution.outcome import (
    FINISHED as RETURNED,
    Failed,
    GaveUp,
    Interrupted,
    Unreadable,
    describe,
)
from drain.workers.measures import memory
from drain.workers.measures.memory import Measures
from drain.workers.measures.worker_metrics import OWN_PAIRS, Meter, Run
from drain.workers.supervisor.collectors import MeasuresCollector

REGISTERED: Any = object()
BUSY = ("drain_work_busy_seconds_total", "1")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def run(
    name: str = "m.f",
    queue: str = "default",
    *,
    took: float = 0.02,
    waited: float | None = 1.5,
    job: Any = REGISTERED,
    context: str | None = None,
    isolated: bool = False,
    began_at: float | None = 10.25,
) -> Run:
    times = (60, 30.0, 7, datetime(2026, 11, 23, tzinfo=UTC), False, False, None, "w", UUID(int=0), waited)
    claim = Claim(1, name, "[]", "{}", queue, None, context, 1, 3, *times)
    return Run(claim, job, JobOptions(isolated=isolated), 10.0, began_at, took)


def values(*measures: Measures) -> dict[tuple[str, ...], float]:
    """Samples that are not 0, by name and values of labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in MeasuresCollector(measures).collect()
        for sample in metric.samples
        if sample.value and metric.name != "drain_work_memory_bytes"
    }


def test_a_job_is_counted_in_its_buckets() -> None:
    measures = Measures()
    Meter(measures).count_finished([run(took=0.02), run(took=0.05), run(took=9999.0, waited=None)])
    found = values(measures)
    job = ("default", "m.f")
    assert found["drain_work_finished_jobs_total", *job] == 3
    assert found["drain_work_run_seconds_count", *job] == 3
    assert found["drain_work_run_seconds_sum", *job] == pytest.approx(9999.07)
    by_bound = {
        bound: found.get(("drain_work_run_seconds_bucket", *job, bound), 0.0) for bound in ("0.01", "0.025")
    }
    assert by_bound == {"0.01": 0, "0.025": 1}
    # A bound belongs to its bucket.
    assert found["drain_work_run_seconds_bucket", *job, "0.05"] == 2
    assert found["drain_work_run_seconds_bucket", *job, "3600.0"] == 2
    assert found["drain_work_run_seconds_bucket", *job, "+Inf"] == 3
    # Between its claim and its beginning a job has waited too.
    assert found["drain_work_wait_seconds_sum", *job] == pytest.approx(2 * 1.75)
    assert found["drain_work_wait_seconds_bucket", *job, "2.0"] == 2
    assert ("drain_work_wait_seconds_bucket", *job, "1.0") not in found
    assert found["drain_work_busy_seconds_total", "1"] == pytest.approx(9999.07)


def test_only_recorded_failures_are_failures() -> None:
    measures = Measures()
    meter = Meter(measures)
    error = describe(ValueError("x"))
    for word, outcome in (
        (RETRYING, Failed(error)),
        (DEAD, Failed(error)),
        (DEAD, GaveUp(describe(Dead("x")))),
        (DEAD, Unreadable("x")),
        ("interrupted", Interrupted(error)),
        ("deferred", RETURNED),
        ("cancelled", Failed(error)),
        (STALE, Failed(error)),
        (FINISHED, RETURNED),
    ):
        meter.count_ended(run(), word, outcome)
    found = values(measures)
    failed = {key[3]: value for key, value in found.items() if key[0] == "drain_work_failed_attempts_total"}
    assert failed == {"ValueError": 2, "drain.workers.errors.Dead": 1, "Unreadable": 1}
    assert found["drain_work_run_seconds_count", "default", "m.f"] == 9
    assert found["drain_work_finished_jobs_total", "default", "m.f"] == 1
    assert found["drain_work_stale_outcomes_total", "1"] == 1
    assert ("drain_work_lost_leases_total", "1") not in found


def test_a_stale_outcome_of_an_isolated_job_counts_as_a_lost_lease() -> None:
    measures = Measures()
    Meter(measures).count_ended(run(isolated=True), STALE, RETURNED)
    assert values(measures)["drain_work_lost_leases_total", "1"] == 1


def test_an_unstarted_job_is_not_counted_as_run() -> None:
    measures = Measures()
    meter = Meter(measures)
    meter.count_ended(run(began_at=None), "cancelled", RETURNED)
    meter.count_expired(run(queue="mail"))
    found = values(measures)
    assert {name for name, *_ in found} == {
        "drain_expired_jobs_total",
        "drain_build_info",
    }
    assert found["drain_expired_jobs_total", "mail"] == 1


def test_a_successor_continues_the_counts() -> None:
    measures = Measures()
    first = Meter(measures)
    first.count_finished([run(), run("m.g")])
    first.count_ended(run(), RETRYING, Failed(describe(ValueError())))
    first.count_lost_lease()
    before = values(measures)
    second = Meter(measures)
    assert values(measures) == before
    second.count_finished([run()])
    second.count_ended(run(), RETRYING, Failed(describe(ValueError())))
    second.count_lost_lease()
    after = values(measures)
    for name, number in (
        ("drain_work_finished_jobs_total", 2),
        ("drain_work_run_seconds_count", 4),
    ):
        assert after[name, "default", "m.f"] == number
    assert after["drain_work_failed_attempts_total", "default", "m.f", "ValueError"] == 2
    assert after["drain_work_lost_leases_total", "1"] == 2
    assert after["drain_work_finished_jobs_total", "default", "m.g"] == 1


def test_counts_of_several_processes_are_summed() -> None:
    both = [Measures(), Measures()]
    Meter(both[0]).count_finished([run("m.f"), run("m.g")])
    Meter(both[1]).count_finished([run("m.h"), run("m.g")])
    Meter(both[1]).count_ended(run("m.f"), DEAD, Failed(describe(ValueError())))
    found = values(*both)
    finished = {key[2]: value for key, value in found.items() if key[0] == "drain_work_finished_jobs_total"}
    assert finished == {"m.f": 1, "m.g": 2, "m.h": 1}
    assert found["drain_work_failed_attempts_total", "default", "m.f", "ValueError"] == 1
    assert {key[1] for key in found if key[0] == "drain_work_busy_seconds_total"} == {"1", "2"}


def test_labels_are_bounded() -> None:
    measures = Measures()
    meter = Meter(measures)
    jobs = [run(f"m.f{number}", f"queue{number % 300}") for number in range(2000)]
    meter.count_finished(jobs)
    meter.count_finished(jobs)
    found = {
        key[1:]: value
        for key, value in values(measures).items()
        if key[0] == "drain_work_finished_jobs_total"
    }
    assert sum(found.values()) == 4000
    assert len(found) == memory.PAIRS
    assert len([job for _, job in found if job != OTHERS]) == OWN_PAIRS
    assert found[OTHERS, OTHERS] > 0
    assert found["queue0", "m.f0"] == 2
    # The next process knows the same.
    Meter(measures).count_finished(jobs)
    assert len(measures.pairs()) == memory.PAIRS


def test_types_of_exceptions_are_bounded() -> None:
    measures = Measures()
    meter = Meter(measures)
    for number in range(300):
        meter.count_ended(run(), DEAD, Failed({"type": f"Error{number}", "message": "", "traceback": ""}))
    found = {
        key[3]: value
        for key, value in values(measures).items()
        if key[0] == "drain_work_failed_attempts_total"
    }
    assert len(found) == memory.ERRORS + 1
    assert found[OTHERS] == 300 - memory.ERRORS


def test_the_longest_names_fit() -> None:
    measures = Measures()
    names = ["é" * 255, "\U0001f600" * 255, 'a"b\\c\n' * 40]
    meter = Meter(measures)
    for name in names:
        meter.count_finished([run(name, "q" * 100)])
    meter.count_ended(run(), DEAD, Failed({"type": "é" * 4000, "message": "", "traceback": ""}))
    assert [job for _, job in measures.pairs()][:3] == names
    assert [each.error for each in measures.failures()] == ["é" * 128]


def test_names_that_are_not_registered_share_a_label() -> None:
    measures = Measures()
    meter = Meter(measures)
    for number in range(1000):
        meter.count_ended(run(f"no.such{number}", job=None), DEAD, Failed(describe(KeyError())))
    assert measures.pairs() == [("default", NOT_REGISTERED)]
    assert meter._own.keys() == {("default", NOT_REGISTERED)}


@pytest.mark.parametrize(
    "traceparent",
    [f"00-{TRACE}-00f067aa0ba902b7-00", f"00-{'0' * 32}-00f067aa0ba902b7-01", "00-x-y-01", '\\"', ""],
)
def test_an_unsampled_or_invalid_trace_yields_no_exemplar(traceparent: str) -> None:
    measures = Measures()
    Meter(measures).count_finished([run(context=f'{{"traceparent": "{traceparent}"}}')])
    assert not any(measures.exemplars(0))


def test_an_exemplar_belongs_to_its_bucket() -> None:
    measures = Measures()
    context = f'{{"a": 1, "traceparent": "00-{TRACE}-00f067aa0ba902b7-01"}}'
    Meter(measures).count_finished([run(took=0.02, context=context), run(took=0.0)])
    found = measures.exemplars(0)
    (exemplar,) = [each for each in found if each is not None]
    assert found.index(exemplar) == RUN_BUCKETS.index(0.025)
    assert (exemplar.trace.hex(), exemplar.seconds) == (TRACE, 0.02)


def test_several_threads_lose_no_count() -> None:
    measures = Measures()
    meter = Meter(measures)

    def count() -> None:
        for number in range(500):
            meter.count_finished([run(), run(f"m.{number % 5}")])
            meter.count_lost_lease()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(measures)
    assert sum(value for key, value in found.items() if key[0] == "drain_work_finished_jobs_total") == 4000
    assert found["drain_work_lost_leases_total", "1"] == 2000


def test_counts_never_decrease_when_a_process_is_killed() -> None:
    """A child counts without end and is killed; what another process reads meanwhile only grows."""
    measures = Measures()
    names = [f"m.{number}" for number in range(20)]
    before: dict[tuple[str, ...], float] = {}
    for _ in range(5):
        busy = before.get(BUSY, 0.0)
        pid = os.fork()
        if pid == 0:
            meter = Meter(measures)
            while True:
                meter.count_finished([run(name, took=random.random()) for name in names])
        try:
            while before.get(BUSY, 0.0) < busy + 100:
                now = values(measures)
                assert all(now[key] >= value for key, value in before.items())
                before = now
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert {key[2] for key in before if key[0] == "drain_work_finished_jobs_total"} == set(names)
