"""Metrics of `drain work`: one scrape of the real port has what all its processes have measured."""

import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.samples import Sample

from drain import metrics
from tests import jobs_measured as jobs
from tests.helpers import PATIENCE_SECONDS, ROOT, Command, free_port, wait_until
from tests.worker_processes import Yard

PROMTOOL = shutil.which("promtool")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE[::-1]}-00f067aa0ba902b7-00"}


def scrape(port: int, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


def samples(port: int) -> list[Sample]:
    return [sample for family in read_text(scrape(port)) for sample in family.samples]


def openmetrics(port: int) -> list[Any]:
    return list(read_openmetrics(scrape(port, OPENMETRICS)))  # type: ignore[no-untyped-call]


class Port:
    """The metrics of one `drain work`."""

    def __init__(self, number: int) -> None:
        self.number = number

    def value(self, name: str, **labels: str) -> float:
        """Sum of the samples with these labels."""
        found = samples(self.number)
        return sum(
            each.value for each in found if each.name == name and labels.items() <= each.labels.items()
        )

    def wait_for(self, number: float, name: str, **labels: str) -> None:
        wait_until(lambda: self.value(name, **labels) == number, PATIENCE_SECONDS)


@contextmanager
def measuring(yard: Yard, *words: str, **more: str) -> Iterator[tuple[Port, Command]]:
    port = free_port()
    env = {"DRAIN_JOBS": jobs.__name__, **more}
    with yard.working("--metrics-port", str(port), *words, **env) as command:
        yield Port(port), command


@pytest.mark.parametrize("options", [(), ("--threads", "4"), ("--processes", "2")], ids=str)
def test_jobs_of_all_kinds_are_counted_by_queue_and_name(yard: Yard, options: tuple[str, ...]) -> None:
    kinds: dict[Any, tuple[int, int]] = {jobs.note: (8, 8), jobs.awaited: (3, 3), jobs.give_up: (2, 0)}
    for job, (number, _) in kinds.items():
        yard.stage(job, *map(str, range(number)))
    yard.stage(jobs.isolated, "key")
    yard.push()
    with measuring(yard, *options) as (port, _):
        for job, (number, finished) in kinds.items():
            port.wait_for(number, "drain_work_run_seconds_count", job_name=job.job_name, queue="default")
            port.wait_for(number, "drain_work_wait_seconds_count", job_name=job.job_name, queue="default")
            port.wait_for(finished, "drain_work_finished_jobs_total", job_name=job.job_name, queue="default")
        failed = "drain_work_failed_attempts_total"
        port.wait_for(2, failed, job_name=jobs.give_up.job_name, error="drain.workers.errors.Dead")
        port.wait_for(1, failed, job_name=jobs.isolated.job_name, error="KeyError")
        port.wait_for(3, failed)
        assert port.value("drain_work_busy_seconds_total") == pytest.approx(
            port.value("drain_work_run_seconds_sum")
        )
        assert port.value("drain_work_memory_bytes") > 2**20
        assert port.value("drain_build_info") == 1
        assert port.value("drain_work_stale_outcomes_total") == 0


def test_a_wait_is_counted_only_at_the_first_start(yard: Yard) -> None:
    for job in (jobs.fail_once, jobs.defer_once):
        yard.stage(job, job.job_name)
    with psycopg.connect(yard.database_url) as connection:
        connection.execute(
            "UPDATE staged_jobs SET (staged_at, scheduled_at) = (earlier.at, earlier.at) "
            "FROM (SELECT now() - interval '100 seconds' AS at) AS earlier"
        )
    yard.push()
    with measuring(yard) as (port, _):
        for job, attempts in ((jobs.fail_once, 2), (jobs.defer_once, 2)):
            wait_until(lambda: redelivered(yard) and _finished(port, job), PATIENCE_SECONDS)  # noqa: B023
            assert port.value("drain_work_run_seconds_count", job_name=job.job_name) == attempts
            assert port.value("drain_work_wait_seconds_count", job_name=job.job_name) == 1
            assert port.value("drain_work_wait_seconds_bucket", job_name=job.job_name, le="60.0") == 0
            assert port.value("drain_work_wait_seconds_sum", job_name=job.job_name) >= 100
        assert port.value("drain_work_failed_attempts_total", error="ValueError") == 1
        assert port.value("drain_work_failed_attempts_total") == 1


def redelivered(yard: Yard) -> bool:
    yard.redeliver()
    return True


def _finished(port: Port, job: Any) -> bool:
    return port.value("drain_work_finished_jobs_total", job_name=job.job_name) == 1


def test_a_killed_process_takes_nothing_with_it(yard: Yard) -> None:
    yard.pushed(jobs.note, *map(str, range(20)))
    yard.pushed(jobs.give_up, "x")
    counters = ("_total", "_count", "_bucket", "_sum")
    with measuring(yard) as (port, command):
        port.wait_for(20, "drain_work_finished_jobs_total", job_name=jobs.note.job_name)
        port.wait_for(1, "drain_work_failed_attempts_total", error="drain.workers.errors.Dead")
        before = {
            (each.name, *sorted(each.labels.items())): each.value
            for each in samples(port.number)
            if each.name.endswith(counters)
        }
        os.kill(_worker(command), signal.SIGKILL)
        wait_until(lambda: len(command.events("started")) == 2, PATIENCE_SECONDS)
        yard.pushed(jobs.note, "after")
        wait_until(lambda: _count_of_notes(port, before, counters) == 21, PATIENCE_SECONDS)
        port.wait_for(21, "drain_work_run_seconds_count", job_name=jobs.note.job_name)


def _worker(command: Command) -> int:
    """The latest worker process, beside which the supervisor has the process of its port."""
    (pid,) = re.findall(r"\(pid (\d+)\)", command.events("started")[-1]["message"])
    return int(pid)


def _count_of_notes(port: Port, before: dict[Any, float], counters: tuple[str, ...]) -> float:
    now = {
        (each.name, *sorted(each.labels.items())): each.value
        for each in samples(port.number)
        if each.name.endswith(counters)
    }
    assert all(now[key] >= value for key, value in before.items())
    labels = (("job_name", jobs.note.job_name), ("queue", "default"))
    return now["drain_work_finished_jobs_total", *labels]


def test_a_process_replaced_after_dying_in_a_job_continues_its_counts(yard: Yard) -> None:
    ids = yard.pushed(jobs.kill_the_process_once, "once")
    with measuring(yard) as (port, _):
        wait_until(lambda: redelivered(yard) and yard.all_are("finished_jobs", ids), PATIENCE_SECONDS)
        port.wait_for(1, "drain_work_finished_jobs_total", job_name=jobs.kill_the_process_once.job_name)
        # It is the second start that was measured, and not the first one of this job.
        assert port.value("drain_work_run_seconds_count") == 1
        assert port.value("drain_work_wait_seconds_count") == 0


def test_hostile_names_are_valid_labels(yard: Yard) -> None:
    yard.pushed(jobs.hostile, "x")
    with psycopg.connect(yard.database_url) as connection:
        connection.execute("INSERT INTO staged_jobs (job_name) VALUES ('no.such\njob'), ('no.other')")
    yard.push()
    with measuring(yard) as (port, _):
        port.wait_for(1, "drain_work_finished_jobs_total", job_name=jobs.HOSTILE)
        port.wait_for(
            2,
            "drain_work_failed_attempts_total",
            job_name=metrics.NOT_REGISTERED,
            error="drain.workers.errors.NotRegisteredError",
        )
        assert not [each for each in samples(port.number) if each.name == "drain_leader"]
        families = {each.name: each for each in openmetrics(port.number)}
        names = {each.labels["job_name"] for each in families["drain_work_finished_jobs"].samples}
        assert names == {jobs.HOSTILE, metrics.NOT_REGISTERED}


def test_names_beyond_the_bound_share_a_label(yard: Yard) -> None:
    with psycopg.connect(yard.database_url) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO staged_jobs (job_name, job_args) VALUES (%s, '[\"x\"]')",
            [(name,) for name in jobs.MANY],
        )
    yard.push()
    with measuring(yard) as (port, _):
        port.wait_for(jobs.FEW, "drain_work_finished_jobs_total")
        found = [each for each in samples(port.number) if each.name == "drain_work_finished_jobs_total"]
        others = [each for each in found if each.labels["job_name"] == metrics.OTHERS]
        assert [each.labels["queue"] for each in others] == ["default"]
        assert others[0].value == jobs.FEW - (len(found) - 1) > 0


def test_a_sampled_trace_is_an_exemplar_only_in_openmetrics(yard: Yard) -> None:
    yard.pushed(jobs.note, "unsampled", context=NOT_SAMPLED)
    with measuring(yard) as (port, _):
        port.wait_for(1, "drain_work_finished_jobs_total")
        assert "trace_id" not in scrape(port.number, OPENMETRICS)
        # A bucket takes one exemplar a second at most.
        wait_until(
            lambda: (
                bool(yard.pushed(jobs.note, "sampled", context=SAMPLED))
                and TRACE in scrape(port.number, OPENMETRICS)
            ),
            PATIENCE_SECONDS,
        )
        text = scrape(port.number, OPENMETRICS)
        assert text.endswith("# EOF\n")
        (family,) = [each for each in openmetrics(port.number) if each.name == "drain_work_run_seconds"]
        exemplars = [each.exemplar for each in family.samples if each.exemplar]
        assert {each.labels["trace_id"] for each in exemplars} == {TRACE}
        assert "trace_id" not in scrape(port.number)


def test_a_job_that_expired_before_its_start_is_counted(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs.note, "late")
    with psycopg.connect(yard.database_url) as connection:
        connection.execute("UPDATE inflight_jobs SET expires_at = now() - interval '1 second'")
    with measuring(yard) as (port, _):
        yard.wait_for("dead_jobs", [job_id])
        port.wait_for(1, "drain_expired_jobs_total", queue="default")
        assert port.value("drain_work_run_seconds_count") == 0


def test_a_lost_lease_and_its_outcome_are_counted(yard: Yard) -> None:
    """The claim of a running job is taken away, as if another worker had claimed the job."""
    (job_id,) = yard.pushed(jobs.outlive_its_lease, "x")
    with measuring(yard) as (port, _):
        wait_until(lambda: yard.effects() == ["x"], PATIENCE_SECONDS)
        with psycopg.connect(yard.database_url) as connection:
            connection.execute(
                "UPDATE inflight_jobs SET fencing_token = fencing_token + 1, claimed_by = 'x', "
                "lease_expires_at = now() + interval '1 hour' WHERE id = %s",
                [job_id],
            )
        port.wait_for(1, "drain_work_lost_leases_total", process="1")
        port.wait_for(1, "drain_work_stale_outcomes_total", process="1")
        assert port.value("drain_work_failed_attempts_total") == 0


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_has_no_complaint(yard: Yard) -> None:
    yard.pushed(jobs.note, "x")
    yard.pushed(jobs.give_up, "x")
    with measuring(yard) as (port, _):
        port.wait_for(1, "drain_work_finished_jobs_total")
        port.wait_for(1, "drain_work_failed_attempts_total")
        checked = subprocess.run(
            [str(PROMTOOL), "check", "metrics"],
            input=scrape(port.number),
            capture_output=True,
            text=True,
            check=False,
        )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_reference_has_each_metric_with_its_type_and_its_labels(yard: Yard) -> None:
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    of_workers = reference.partition("## `drain work")[2].partition("\n## ")[0]
    listed = {
        name: (kind, set(re.findall("`([^`]+)`", labels)))
        for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", of_workers, re.MULTILINE)
    }
    yard.pushed(jobs.note, "x")
    yard.pushed(jobs.give_up, "x")
    with measuring(yard) as (port, _):
        port.wait_for(1, "drain_work_finished_jobs_total")
        port.wait_for(1, "drain_work_failed_attempts_total")
        served = {
            each.name: (each.type, {label for sample in each.samples for label in sample.labels} - {"le"})
            for each in openmetrics(port.number)
        }
    assert served == listed
