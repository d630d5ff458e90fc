"""Plain RQ jobs under `rq worker` and under `drain work`: RQ's books say the same afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job

from drain.embedded import Services
from tests import plain_probes as probes
from tests.helpers import DRAIN, PATIENCE_SECONDS, ROOT, RQ_PROGRAM, environment
from tests.plain_probes import OPTIONS, PROBES, PROBES_WITH_OPTIONS, Probe

pytestmark = pytest.mark.usefixtures("processes")

COMMON = ("--burst", "--job-monitoring-interval", "1", "--maintenance-interval", "600")
BATCH_SECONDS = 2 * PATIENCE_SECONDS


@dataclass(frozen=True)
class Worker:
    """One of the two, and the database of Redis in which it works."""

    name: str
    words: tuple[str, ...]
    env: dict[str, str]
    redis_url: str

    def run(self, batch: Mapping[str, Probe], *options: str) -> dict[str, Any]:
        """Let it work on all probes of a batch; returns what has been found, by the name of the probe."""
        with Redis.from_url(self.redis_url) as client:
            client.flushdb()
            serializer = "json" if "json" in options else None
            queue = Queue("default", connection=client, serializer=serializer)
            jobs = {name: probe(queue) for name, probe in batch.items()}
            done = subprocess.run(
                [sys.executable, *self.words, *COMMON, *options, "default"],
                env=self.env,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BATCH_SECONDS,
                check=False,
            )
            assert done.returncode == 0, done.stdout
            return self._found(client, jobs)

    @staticmethod
    def _found(client: Redis, jobs: Mapping[str, list[Job]]) -> dict[str, Any]:
        names = {job.id: f"{probe} {place}" for probe, of in jobs.items() for place, job in enumerate(of)}
        marks: Any = client.lrange(probes.MARKS, 0, -1)
        child: Any = client.get("child")
        return {probe: [probes.found(job, client) for job in of] for probe, of in jobs.items()} | {
            "marks": sorted(_named(mark.decode(), names) for mark in marks),
            "workers left": client.smembers("rq:workers") | client.smembers("rq:workers:default"),
            "waiting": client.llen("rq:queue:default"),
            "on the way": client.keys("*:intermediate*"),
            "child": child is not None and _runs(int(child)),
        }


def _runs(pid: int) -> bool:
    # A zombie, which waits for process 1 to reap it, has no command line.
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def _named(mark: str, names: Mapping[str, str]) -> str:
    for job_id, name in names.items():
        mark = mark.replace(job_id, name)
    return mark


@pytest.fixture(scope="module")
def both(servers: Services, template: str) -> list[Worker]:
    urls = [servers.redis_url.partition("?")[0] + f"?db={number}" for number in (1, 2)]
    # No job of ours is run, so the template itself will do.
    env = environment(
        servers.postgres.url_of(template), urls[1], DRAIN_JOBS="tests.jobs_for_tests", PYTHONPATH=str(ROOT)
    )
    return [
        Worker("rq worker", (RQ_PROGRAM, "worker", "-u", urls[0]), env, urls[0]),
        Worker("drain work", ("-c", DRAIN, "work", "--plain", "fork"), env, urls[1]),
    ]


def run_both(both: list[Worker], batch: Mapping[str, Probe], *options: str) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda worker: worker.run(batch, *options), both))


@pytest.fixture(scope="module")
def outcomes(both: list[Worker]) -> list[dict[str, Any]]:
    return run_both(both, PROBES)


@pytest.fixture(scope="module")
def outcomes_with_options(both: list[Worker]) -> list[dict[str, Any]]:
    return run_both(both, PROBES_WITH_OPTIONS, *OPTIONS)


def only(outcomes: list[dict[str, Any]], probe: str) -> list[dict[str, Any]]:
    """What both have left, which is the same."""
    by_rq, by_us = (outcome[probe] for outcome in outcomes)
    assert by_us == by_rq
    found: list[dict[str, Any]] = by_us
    return found


@pytest.mark.parametrize("probe", [*PROBES, "marks", "waiting", "child"])
def test_a_plain_job_leaves_the_same_rq_records_under_both_workers(
    outcomes: list[dict[str, Any]], probe: str
) -> None:
    only(outcomes, probe)


@pytest.mark.parametrize(
    ("probe", "result"),
    {
        "bounds of the connection": "415",
        "environment": "[True, True, True]",
        "JSON under pickle": "rq.exceptions.DeserializationError",
        "leaks": "[False, None, 0]",
        "no timeout": "True",
        "an id that looks like ours": "'done looks like ours'",
        "a hard exit": "Work-horse terminated unexpectedly; waitpid returned 768;",
        "stop-job": "Job stopped by user, work-horse terminated.",
    }.items(),
)
def test_a_plain_job_ends_the_same_as_under_rq_worker(
    outcomes: list[dict[str, Any]], probe: str, result: str
) -> None:
    *_, (_, shown) = only(outcomes, probe)[-1]["results"]
    assert shown == result


def test_no_worker_and_no_child_of_a_killed_job_is_left(outcomes: list[dict[str, Any]]) -> None:
    _, by_us = outcomes
    assert by_us["workers left"] == set()
    assert by_us["child"] is False
    # RQ leaves an id there of which it knows nothing any more.
    assert by_us["on the way"] == []


@pytest.mark.parametrize("probe", [*PROBES_WITH_OPTIONS, "marks"])
def test_rqs_options_mean_the_same_to_both_workers(
    outcomes_with_options: list[dict[str, Any]], probe: str
) -> None:
    only(outcomes_with_options, probe)
