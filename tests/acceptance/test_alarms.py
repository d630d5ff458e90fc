"""Alarms of deploy/prometheus/alerts.yml, fired by real faults under a real Prometheus, within their promised times.

All times of the rules and of prometheus.yml are divided by FASTER, and so are the leader's pause between two
measurements and its longest pause between two attempts; nothing else is. The promise is `fires_within` in alerts.yml.
"""

import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks import prometheus
from benchmarks.prometheus import Prometheus
from drain import stage, stage_many
from drain.database import schema
from drain.embedded import Services, services
from tests import jobs_for_tests as jobs
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    Command,
    drain_command,
    end,
    environment,
    free_port,
    ids_in,
    impatient,
    leading,
    query,
    wait_until,
)

pytestmark = pytest.mark.skipif(prometheus.binary() is None, reason="Prometheus is not installed")

FASTER = 30
# Bound for the times that are no part of the rules: those of the processes, on a machine that is busy with other tests.
MORE_SECONDS = PATIENCE_SECONDS
MANY = "INSERT INTO staged_jobs (job_name) SELECT 'm.f' FROM generate_series(1, 10000)"
PAUSES = {"drain.enqueuer.gauges._PAUSE_SECONDS": 5, "drain.enqueuer.daemon._LONGEST_BACKOFF_SECONDS": 5}


@dataclass(frozen=True)
class Watched:
    """An installation that works, with Prometheus beside it."""

    servers: Services
    env: dict[str, str]
    port: int
    leader: Command
    worker: Command
    prometheus: Prometheus

    def fires(self, alert: str) -> None:
        """Wait until the alarm fires, for as long as it has promised."""
        bound = prometheus.promise(alert, FASTER) + MORE_SECONDS
        wait_until(lambda: alert in self.prometheus.firing(), bound)

    def is_quiet(self) -> bool:
        """Whether no alarm fires or is about to: as Prometheus starts, it has not seen a leader yet."""
        return not self.prometheus.firing() | self.prometheus.pending()

    def stage(self, job: Any, *labels: str) -> list[int]:
        with psycopg.connect(self.servers.database_url) as connection:
            return stage_many(connection, job, [(label,) for label in labels])

    def finish(self, *ids: int) -> None:
        wait_until(lambda: set(ids) <= set(ids_in(self.servers.database_url, "finished_jobs")))


@pytest.fixture
def watched(temporary_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(tempfile, "tempdir", temporary_directory)
    ports = [free_port() for _ in range(3)]
    at = [f"127.0.0.1:{port}" for port in ports]
    pauses = impatient({name: seconds / FASTER for name, seconds in PAUSES.items()})
    targets = {"drain-run": at[:1], "drain-work": at[1:2]}
    with (
        prometheus.prometheus(tmp_path, ports[2], targets, faster=FASTER) as server,
        services(durable=False) as own,
    ):
        schema.install(own.database_url)
        jobs.create_effects(own.database_url)
        env = environment(own.database_url, own.redis_url, DRAIN_JOBS=jobs.MODULE, PYTHONPATH=str(ROOT))
        with (
            leading(env | pauses, "--metrics-port", str(ports[0])) as leader,
            drain_command("work", "default", "--metrics-port", str(ports[1]), env=env) as worker,
        ):
            wait_until(lambda: worker.events("started"))
            server.wait_for_targets(2)
            yield Watched(own, env | pauses, ports[0], leader, worker, server)


def test_a_killed_leader_is_an_alarm_until_another_one_leads(watched: Watched) -> None:
    wait_until(watched.is_quiet)
    watched.leader.kill()
    watched.leader.wait(PATIENCE_SECONDS)

    watched.fires("DrainNoLeader")
    watched.fires("DrainTargetDown")

    with leading(watched.env, "--metrics-port", str(watched.port)):
        wait_until(lambda: not watched.prometheus.firing())


def test_a_stalled_worker_raises_an_alarm(watched: Watched) -> None:
    watched.finish(*watched.stage(jobs.record, "a", "b", "c"))
    finished = "sum(drain_work_finished_jobs_total) == 3"
    wait_until(lambda: watched.prometheus.query(finished))
    watched.stage(jobs.sleep_on_a_short_lease, "sleeps")
    wait_until(lambda: "sleeps" in jobs.effects(watched.servers.database_url))
    wait_until(watched.is_quiet)
    watched.worker.signal_all(signal.SIGSTOP)
    watched.stage(jobs.record, "d", "e", "f")

    watched.fires("DrainLeaseLosses")
    watched.fires("DrainCompletionsLow")


def test_an_unattended_queue_and_an_expired_job_raise_alarms(watched: Watched) -> None:
    wait_until(watched.is_quiet)
    assert end(watched.worker) == 0
    gone = datetime.now(UTC) - timedelta(days=1)
    with psycopg.connect(watched.servers.database_url) as connection:
        stage(connection, jobs.record, ["late"], expires_at=gone)
        connection.execute(MANY)

    watched.fires("DrainExpiredJobs")
    watched.fires("DrainQueueWithoutWorkers")
    watched.fires("DrainQueueAboveHighWater")


STUCK = """
SELECT drain_stage('m.f', '[]', jsonb_build_object('flow', id, 'expires_at', now() - interval '1 day'))
FROM drain_flow()
"""
OVERDUE = """
WITH parked AS (
    INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery,
        next_run_at)
    SELECT nextval('staged_jobs_id_seq'), 'm.f', '[]', '{}', 'default', 0, now(), now(), 1, '9999-12-29Z' RETURNING id
)
INSERT INTO job_waits (job_id, name, deadline, fencing_token)
SELECT id, 'sleep 1', now() + interval '1 day', 1 FROM parked
"""


def test_a_stuck_flow_and_a_wait_that_the_leader_cannot_end_raise_alarms(watched: Watched) -> None:
    wait_until(watched.is_quiet)
    url = watched.servers.database_url
    query(url, STUCK)
    query(url, OVERDUE)
    with psycopg.connect(url) as connection:
        connection.execute("SELECT FROM inflight_jobs WHERE next_run_at > now() FOR UPDATE")
        query(url, "UPDATE job_waits SET deadline = now()")

        watched.fires("DrainFlowFailed")
        watched.fires("DrainWaitOverdue")
    query(url, "UPDATE dead_jobs SET died_at = died_at - interval '1 day'")

    watched.fires("DrainFlowFailing")
    wait_until(lambda: "DrainWaitOverdue" not in watched.prometheus.firing())


def test_a_redis_outage_raises_an_alarm_until_it_ends(watched: Watched) -> None:
    wait_until(watched.is_quiet)
    watched.servers.redis.stop()
    watched.fires("DrainStoreFailures")
    watched.fires("DrainWorkerCutOff")

    watched.servers.redis.start()
    wait_until(lambda: not watched.prometheus.firing())
