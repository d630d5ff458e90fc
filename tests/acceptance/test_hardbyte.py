"""The adapter in benchmarks/hardbyte keeps the contract of its harness."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from redis import Redis

from drain.embedded import Services
from tests.helpers import PATIENCE_SECONDS, ROOT, all_with, drain_command, environment, query, wait_until

ADAPTER = ROOT / "benchmarks" / "hardbyte"
MANIFEST = json.loads((ADAPTER / "adapter.json").read_text(encoding="utf-8"))
# Metrics that the harness requires of each sample, and those of the first instance.
OF_EACH = {"claim_p50_ms", "claim_p95_ms", "claim_p99_ms", "enqueue_rate", "completion_rate"}
OF_THE_FIRST = {"queue_depth", "producer_target_rate"}
LEFT = "SELECT (SELECT count(*) FROM staged_jobs) + (SELECT count(*) FROM inflight_jobs)"
ENDED = "SELECT (SELECT count(*) FROM finished_jobs), (SELECT count(*) FROM dead_jobs)"
MARK = "BENCH_MARK"
# An instance starts five programs one after the other.
START_SECONDS = 3 * PATIENCE_SECONDS


class Instance:
    """A running adapter, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str], mark: str) -> None:
        self.process, self.mark = process, mark
        self.records: list[dict[str, Any]] = []
        Thread(target=self._read, daemon=True).start()
        wait_until(lambda: self.records, START_SECONDS)
        self.descriptor = self.records[0]

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.records.append(json.loads(line))

    def enqueue(self, *counts: int) -> None:
        assert self.process.stdin
        self.process.stdin.write("".join(f"ENQUEUE {count}\n" for count in counts))
        self.process.stdin.flush()

    def total(self, metric: str) -> float:
        found = [each for each in self.samples if each["metric"] == metric]
        return float(sum(each["value"] * each["window_s"] for each in found))

    def values(self, metric: str) -> set[float]:
        return {each["value"] for each in self.samples if each["metric"] == metric}

    @property
    def samples(self) -> list[dict[str, Any]]:
        return [each for each in self.records if each["kind"] == "adapter"]

    def processes(self) -> dict[int, str]:
        return all_with(MARK, self.mark)


@contextmanager
def instance(database_url: str, redis_url: str, **options: str) -> Iterator[Instance]:
    """Run an instance as the harness does, natively."""
    mark = os.urandom(8).hex()
    fixed = {"SCENARIO": "long_horizon", "PRODUCER_MODE": "fixed", "PRODUCER_PACING": "harness"}
    more = {"DATABASE_URL": database_url, "WORKER_COUNT": "4", "SAMPLE_EVERY_S": "1"}
    env = environment(database_url, redis_url, **{MARK: mark})
    with subprocess.Popen(
        [sys.executable, ADAPTER / "main.py"],
        env=env | fixed | more | options,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Instance(process, mark)
        finally:
            # An instance that leaves processes behind fails a test, but must not disturb others.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def stopped(running: Instance) -> int:
    running.process.send_signal(signal.SIGTERM)
    return running.process.wait(PATIENCE_SECONDS)


def test_an_instance_describes_itself_stages_as_asked_and_samples(
    processes: None, empty_database_url: str, redis_url: str
) -> None:
    with Redis.from_url(redis_url) as client:
        client.set("left by a database of the same name", 1)
    with instance(empty_database_url, redis_url) as running:
        assert running.descriptor["kind"] == "descriptor"
        assert set(running.descriptor["event_tables"]) >= set(MANIFEST["event_tables"])
        for name in (*MANIFEST["event_tables"], *MANIFEST["event_indexes"]):
            assert query(empty_database_url, "SELECT to_regclass(%s) IS NOT NULL", name) == [(True,)], name
        running.enqueue(100, 1, 20)
        wait_until(lambda: round(running.total("completion_rate")) == 121)
        assert round(running.total("enqueue_rate")) == 121
        assert {each["metric"] for each in running.samples} == OF_EACH | OF_THE_FIRST
        assert max(running.values("claim_p99_ms")) > 0
        assert stopped(running) == 0
        assert not running.processes()
    assert query(empty_database_url, ENDED) == [(121, 0)]
    with Redis.from_url(redis_url) as client:
        assert not client.exists("left by a database of the same name")


@pytest.mark.parametrize(
    ("options", "followed"),
    [
        ({"PRODUCER_PACING": "adapter", "PRODUCER_RATE": "1"}, {150.0, 300.0}),
        ({"PRODUCER_MODE": "depth-target", "TARGET_DEPTH": "40"}, set()),
    ],
    ids=["clock", "depth"],
)
def test_without_requests_from_the_harness_the_clock_or_the_depth_decides(
    processes: None,
    empty_database_url: str,
    redis_url: str,
    tmp_path: Path,
    options: Mapping[str, str],
    followed: set[float],
) -> None:
    rate = tmp_path / "rate"
    rate.write_text("150.0", encoding="utf-8")
    # The only worker is busy for longer than the test takes, with those jobs that it has begun.
    busy = {"JOB_WORK_MS": str(1000 * PATIENCE_SECONDS), "PRODUCER_RATE_CONTROL_FILE": str(rate)}
    with instance(empty_database_url, redis_url, **busy, **options) as running:
        wait_until(lambda: running.total("enqueue_rate") > 40)
        wait_until(lambda: max(running.values("queue_depth"), default=0) >= 40)
        # As the harness does in a high-load phase.
        rate.write_text("300.0", encoding="utf-8")
        wait_until(lambda: running.values("producer_target_rate") & {150.0, 300.0} == followed)


def test_another_instance_finishes_the_jobs_of_a_killed_one(
    processes: None, empty_database_url: str, redis_url: str
) -> None:
    claimed = "SELECT FROM inflight_jobs WHERE lease_expires_at IS NOT NULL LIMIT 1"
    # Its jobs take longer than the test.
    with instance(empty_database_url, redis_url, JOB_WORK_MS=str(5000 * PATIENCE_SECONDS)) as first:
        first.enqueue(*[20] * 20)
        wait_until(lambda: query(empty_database_url, claimed), START_SECONDS)
        with instance(empty_database_url, redis_url, BENCH_INSTANCE_ID="1") as second:
            first.process.kill()
            wait_until(lambda: not first.processes())
            with instance(empty_database_url, redis_url) as again:
                again.enqueue(10)
                wait_until(lambda: query(empty_database_url, LEFT) == [(0,)], START_SECONDS)
                assert {each["metric"] for each in second.samples} == OF_EACH
                assert again.process.stdin
                again.process.stdin.close()
                assert (again.process.wait(PATIENCE_SECONDS), stopped(second)) == (0, 0)
    (last_id,) = query(empty_database_url, "SELECT last_value FROM staged_jobs_id_seq")[0]
    assert query(empty_database_url, ENDED) == [(last_id, 0)]


def test_an_instance_survives_a_restart_of_the_database(own: Services) -> None:
    with instance(own.database_url, own.redis_url) as running:
        running.enqueue(50)
        wait_until(lambda: round(running.total("completion_rate")) == 50)
        own.postgres.stop()
        running.enqueue(*[1] * 50)
        own.postgres.start()
        wait_until(lambda: round(running.total("completion_rate")) == 100)
        assert stopped(running) == 0
        with drain_command("audit", env=environment(own.database_url, own.redis_url)) as audit:
            assert audit.wait(PATIENCE_SECONDS) == 0, audit.output
