"""Workers as processes: RQ's own and ours, on jobs that succeed, fail, hang, lie and die."""

import base64
import json
import os
import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from redis import Redis
from rq.job import Job

from drain import stage
from drain.__main__ import main
from drain.config import Settings
from drain.database import postgres, schema
from drain.embedded import CARELESS, EmbeddedPostgres, EmbeddedRedis
from drain.enqueuer.redelivery import Redelivery
from drain.jobs import registry
from drain.tables import claims
from drain.wire import Producer, tracked
from drain.workers import job
from drain.workers.entry import Worker
from tests import jobs_for_tests as jobs
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    effects,
    environment,
    new_enqueuer,
    pushed,
    rq_worker,
    wait_until,
)
from tests.poolers import SmallPooler

pytestmark = pytest.mark.usefixtures("processes")

TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs")
MARKER = "an-argument-that-nobody-but-postgres-may-see"
NUL, LONE_SURROGATE, MEGABYTE = '"a\\u0000b"', '"\\ud800"', 1_000_000


@dataclass(frozen=True)
class System:
    """A database with a table for effects, and a Redis; the enqueuer's part is done in this process."""

    database_url: str
    redis_url: str

    def environment(self, **more: str) -> dict[str, str]:
        given = {"DRAIN_JOBS": jobs.MODULE, "PYTHONPATH": str(ROOT)} | more
        return environment(self.database_url, self.redis_url, **given)

    def execute(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.database_url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def stage(self, job: Any, *args: Any, **options: Any) -> int:
        with psycopg.connect(self.database_url) as connection:
            return stage(connection, job, args, **options)

    def drain(self, **options: Any) -> None:
        with new_enqueuer(self.database_url, self.redis_url, **options) as enqueuer:
            Redelivery(enqueuer).recover()
            enqueuer.drain()

    def staged_and_drained(self, job: Any, *args: Any, **options: Any) -> int:
        job_id = self.stage(job, *args, **options)
        self.drain()
        return job_id

    def redeliver(self) -> int:
        """Push again what is overdue, without grace for what is in no list: no worker is underway."""
        with new_enqueuer(self.database_url, self.redis_url) as enqueuer:
            redelivery = Redelivery(enqueuer, lost_after_seconds=0)
            return redelivery.recover() + redelivery.run_once() + redelivery.run_once()

    def end_lease(self, job_id: int) -> None:
        self.execute(
            "UPDATE inflight_jobs SET lease_expires_at = clock_timestamp() - interval '1 ms' WHERE id = %s",
            job_id,
        )

    def whereabouts(self, job_id: int) -> str:
        """Name of the one table that has the job."""
        # One statement, so one snapshot: a job that moves meanwhile is in one of the two tables.
        places = (f"SELECT '{name}' AS place FROM {name} WHERE id = %s" for name in TABLES)
        (found,) = self.execute(" UNION ALL ".join(places), *[job_id] * len(TABLES))
        return str(found["place"])

    def row(self, table: str, job_id: int) -> dict[str, Any]:
        (found,) = self.execute(f"SELECT * FROM {table} WHERE id = %s", job_id)
        return found

    def effects(self) -> list[str]:
        return effects(self.database_url)

    def rq_worker(self, *queues: str, **more: str) -> str:
        """Let an unmodified `rq worker` empty the queues, told nothing but what it needs; its output."""
        told = {
            "DRAIN_DATABASE_URL": self.database_url,
            "DRAIN_JOBS": jobs.MODULE,
            "PYTHONPATH": str(ROOT),
        }
        return rq_worker(self.redis_url, *(queues or ["default"]), env=told | more)

    def drain_work(self, *queues: str, **more: str) -> str:
        """Let `drain work --burst` empty the queues; its output."""
        with drain_command("work", "--burst", *queues, env=self.environment(**more)) as command:
            assert command.wait(PATIENCE_SECONDS) == 0
            return command.output


@pytest.fixture
def system(database_url: str, redis_url: str) -> System:
    jobs.create_effects(database_url)
    return System(database_url, redis_url)


@pytest.fixture
def worker(system: System, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker in this process."""
    monkeypatch.setenv("DRAIN_DATABASE_URL", system.database_url)
    worker = Worker(Settings(database_url=system.database_url))
    yield worker
    worker.close()


# --- workers that run jobs


def test_an_unmodified_rq_worker_executes_tracked_jobs(system: System) -> None:
    ids = [system.stage(jobs.record, label) for label in ("one", "two")]
    system.drain()
    system.rq_worker()
    assert system.effects() == ["one", "two"]
    for job_id in ids:
        assert system.whereabouts(job_id) == "finished_jobs"
        finished = system.row("finished_jobs", job_id)
        assert (finished["attempts"], finished["fencing_token"], finished["last_error"]) == (1, 1, None)


def test_drain_work_runs_only_its_queues_in_their_order(system: System) -> None:
    for queue in ("slow", "other", "fast", "slow", "fast"):
        system.stage(jobs.record, queue, queue=queue)
    system.drain()
    system.drain_work("fast", "slow")
    assert system.effects() == ["fast", "fast", "slow", "slow"]
    assert len(system.execute("SELECT 1 FROM inflight_jobs WHERE queue = 'other'")) == 1


def test_drain_work_without_a_queue_works_on_default(system: System) -> None:
    job_id = system.staged_and_drained(jobs.record, "here")
    system.drain_work()
    assert system.whereabouts(job_id) == "finished_jobs"


def test_drain_work_ends_on_sigterm_after_the_job_in_hand(system: System) -> None:
    first = system.stage(jobs.wait_for_go, "first")
    second = system.stage(jobs.record, "second")
    with drain_command("work", env=system.environment()) as command:
        system.drain()
        wait_until(system.effects, PATIENCE_SECONDS)
        command.terminate()
        wait_until(lambda: command.events("stopping"))
        assert command.poll() is None
        jobs.leave_effect(system.database_url, "go")
        assert command.wait(PATIENCE_SECONDS) == 0
    assert system.whereabouts(first) == "finished_jobs"
    assert system.whereabouts(second) == "inflight_jobs"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_drain_work_ends_on_a_signal(system: System, number: signal.Signals) -> None:
    system.staged_and_drained(jobs.record, "awake")
    with drain_command("work", env=system.environment()) as command:
        wait_until(lambda: system.execute("SELECT 1 FROM finished_jobs"), PATIENCE_SECONDS)
        command.send_signal(number)
        assert command.wait(PATIENCE_SECONDS) == 0
        assert "Traceback" not in command.output


def test_a_second_sigterm_interrupts_the_running_job_and_loses_nothing(system: System) -> None:
    job_id = system.staged_and_drained(jobs.hang_once, "interrupted")
    with drain_command("work", env=system.environment()) as command:
        wait_until(system.effects, PATIENCE_SECONDS)
        command.terminate()
        wait_until(lambda: command.events("stopping"))
        assert command.poll() is None
        command.terminate()
        assert command.wait(PATIENCE_SECONDS) == 0
        (event,) = command.events("job_interrupted")
        assert event["job_id"] == job_id
    interrupted = system.row("inflight_jobs", job_id)
    assert interrupted["attempts"] == 0
    assert interrupted["last_error"]["type"] == "drain.workers.errors.WorkerStoppedError"
    assert interrupted["next_run_at"] is not None


def test_a_failing_job_is_retried_dies_and_succeeds_after_a_manual_retry(system: System) -> None:
    job_id = system.stage(jobs.fail_times, "stubborn", 2)
    with (
        drain_command("run", "--metrics-port", "0", env=system.environment()),
        drain_command("work", env=system.environment()),
    ):
        wait_until(lambda: system.execute("SELECT 1 FROM dead_jobs"), PATIENCE_SECONDS)
        dead = system.row("dead_jobs", job_id)
        assert (dead["reason"], dead["attempts"]) == ("failed", 2)
        assert dead["explanation"] == "failed 2 times; last: ValueError: not yet, says stubborn"
        assert dead["last_error"]["message"] == "not yet, says stubborn"
        assert "in fail_times" in dead["last_error"]["traceback"]
        assert system.effects() == ["stubborn"] * 2
        with drain_command("dead", "retry", str(job_id), "--yes", env=system.environment()) as retry:
            assert retry.wait(PATIENCE_SECONDS) == 0
        wait_until(lambda: system.execute("SELECT 1 FROM finished_jobs"), PATIENCE_SECONDS)
    assert system.whereabouts(job_id) == "finished_jobs"
    assert system.effects() == ["stubborn"] * 3
    finished = system.row("finished_jobs", job_id)
    assert (finished["attempts"], finished["fencing_token"]) == (1, 3)
    assert [life["explanation"] for life in finished["history"]] == [dead["explanation"]]


# --- jobs that misbehave

STAGED_WITHOUT_ARGUMENTS = """
INSERT INTO staged_jobs (job_name, max_attempts) VALUES ('tests.jobs_for_tests.record', 1) RETURNING id
"""


def test_every_job_failure_is_recorded_and_the_worker_continues(system: System) -> None:
    expected = {
        system.stage(jobs.exit_the_process, 0): "SystemExit: 0",
        system.stage(jobs.exit_the_process, 3): "SystemExit: 3",
        system.stage(jobs.raise_text, NUL): "ValueError: a\ufffdb",
        system.stage(jobs.raise_text, LONE_SURROGATE): "ValueError: ?",
        system.stage(jobs.raise_text, '"x"', MEGABYTE): "ValueError: " + "x" * 2000,
        system.stage(jobs.raise_unprintable): (
            "tests.jobs_for_tests.UnprintableError: (its text cannot be shown: RuntimeError)"
        ),
        system.stage(jobs.raise_cancelled): (
            "asyncio.exceptions.CancelledError: somebody cancelled the task"
        ),
        # In plain SQL: `stage` would refuse it, since its function is registered here.
        system.execute(STAGED_WITHOUT_ARGUMENTS)[0]["id"]: (
            "drain.workers.errors.ArgumentsDoNotFitError: the arguments do not fit "
            "tests.jobs_for_tests.record(label: str) -> None: missing a required argument: 'label'"
        ),
        system.stage(jobs.sleep, "too long", timeout_seconds=1): (
            "drain.workers.errors.JobTimeoutError: it ran for longer than its timeout of 1 s"
        ),
    }
    last = system.stage(jobs.record, "last", priority=1)
    system.drain()
    system.drain_work()
    assert system.whereabouts(last) == "finished_jobs"
    dead = {row["id"]: row for row in system.execute("SELECT * FROM dead_jobs")}
    told = {job_id: row["explanation"] for job_id, row in dead.items()}
    assert told == {job_id: f"failed 1 time; last: {line}" for job_id, line in expected.items()}
    assert {row["reason"] for row in dead.values()} == {"failed"}
    kept = {"type", "message", "traceback", "at", "attempt", "worker", "claimed_at"}
    assert all(row["last_error"].keys() == kept for row in dead.values())
    assert len(json.dumps(list(dead.values()), default=str)) < 100_000


def test_under_rq_worker_the_jobs_own_timeout_interrupts_it(system: System) -> None:
    job_id = system.staged_and_drained(jobs.sleep, "too long", timeout_seconds=1)
    system.rq_worker()
    dead = system.row("dead_jobs", job_id)
    assert dead["last_error"]["type"] == "drain.workers.errors.JobTimeoutError"


def test_a_job_with_the_longest_timeout_that_the_schema_takes_runs(system: System) -> None:
    job_id = system.staged_and_drained(jobs.record, "patient", timeout_seconds=2**31 - 1)
    system.drain_work()
    assert system.whereabouts(job_id) == "finished_jobs"


def test_an_unregistered_job_is_retried_then_dead_and_lists_registered_jobs(
    system: System, worker: Worker
) -> None:
    job_id = system.staged_and_drained("shop.jobs.sned_receipt", max_attempts=2)
    assert worker.execute(job_id) == "retrying"
    waiting = system.row("inflight_jobs", job_id)
    assert waiting["last_error"]["type"] == "drain.workers.errors.NotRegisteredError"
    system.execute("UPDATE inflight_jobs SET next_run_at = NULL, delivery = delivery + 1")
    assert worker.execute(job_id) == "dead"
    explanation = system.row("dead_jobs", job_id)["explanation"]
    assert "no function is registered as 'shop.jobs.sned_receipt'" in explanation
    assert f"{jobs.MODULE}.fail_times" in explanation
    assert f"{jobs.MODULE}.record" in explanation


@pytest.mark.parametrize("pooled", [False, True], ids=["directly", "through a pooler"])
@pytest.mark.parametrize("style", ["German", "SQL, DMY"])
def test_a_database_with_its_own_datestyle_works_too(
    database_url: str, redis_url: str, style: str, pooled: bool
) -> None:
    name = conninfo_to_dict(database_url)["dbname"]
    direct = System(database_url, redis_url)
    jobs.create_effects(database_url)
    direct.execute(f"ALTER DATABASE {name} SET DateStyle = {style}")
    failing = direct.staged_and_drained(jobs.fail_for_an_hour, "failing")
    working = direct.staged_and_drained(jobs.record, "working")
    with SmallPooler(database_url, "transaction") if pooled else nullcontext() as pooler:
        system = System(pooler.url if pooler else database_url, redis_url)
        system.drain_work()
        assert direct.whereabouts(working) == "finished_jobs"

        def drain(*words: str) -> str:
            result = CliRunner().invoke(main, words, env=system.environment())
            assert result.exit_code == 0, result.output
            return result.stdout

        with new_enqueuer(database_url, redis_url) as enqueuer:
            assert Redelivery(enqueuer).run_once() == 0
            (since,) = query_one(database_url, "SELECT leader_since FROM drain_state")
            assert json.loads(drain("status", "--json"))["leader"]["since"] == since.isoformat()
        (shown,) = json.loads(drain("list", "inflight", "--json"))
        assert (shown["id"], shown["attempts"]) == (failing, 1)
        (finished,) = json.loads(drain("list", "finished", "--json"))
        assert datetime.fromisoformat(finished["finished_at"]) > datetime.fromisoformat(
            finished["claimed_at"]
        )
        assert finished["finished_xid"] > 0
        assert "failed_at" in drain("show", str(failing))
        drain("audit", "--patience-seconds", "0")


def query_one(database_url: str, statement: LiteralString) -> tuple[Any, ...]:
    """Its only row, in the style that psycopg can read."""
    with psycopg.connect(database_url, options="-c DateStyle=ISO") as connection:
        return postgres.fetch_one(connection, statement)


def test_a_job_that_expires_while_waiting_in_redis_is_dead_and_never_runs(system: System) -> None:
    job_id = system.staged_and_drained(jobs.record, "stale")
    system.execute("UPDATE inflight_jobs SET expires_at = clock_timestamp() - interval '1 ms'")
    system.drain_work()
    dead = system.row("dead_jobs", job_id)
    assert dead["reason"] == "expired"
    assert "expires_at" in dead["explanation"]
    assert system.effects() == []


def test_unparsable_arguments_kill_the_job_at_once_and_the_next_job_runs(
    system: System, worker: Worker
) -> None:
    # Written by another language: Python itself would not send them.
    (row,) = system.execute(
        "INSERT INTO staged_jobs (job_name, job_args) VALUES (%s, %s) RETURNING id",
        jobs.record.job_name,
        f"[{'7' * 5000}]",
    )
    after = system.staged_and_drained(jobs.record, "after")
    assert worker.execute(row["id"]) == "dead"
    (dead,) = system.execute("SELECT id, reason, attempts, explanation FROM dead_jobs")
    assert (dead["id"], dead["reason"], dead["attempts"]) == (row["id"], "unreadable", 1)
    assert dead["explanation"].startswith("Python cannot read its arguments: ")
    assert worker.execute(after) == "finished"


@pytest.mark.parametrize(
    "words", [("show", "1"), ("show", "1", "--json"), ("list", "dead"), ("list", "dead", "--json")]
)
def test_an_operator_can_inspect_a_job_with_unparsable_arguments(
    system: System, worker: Worker, words: tuple[str, ...]
) -> None:
    system.execute(
        "INSERT INTO staged_jobs (job_name, job_args, queue) VALUES (%s, %s, 'odd')",
        jobs.record.job_name,
        f"[{'7' * 5000}]",
    )
    system.drain()
    assert worker.execute(1) == "dead"
    with drain_command(*words, env=system.environment()) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert "odd" in command.output


# --- workers that die


def test_the_job_of_a_killed_worker_runs_again_elsewhere_and_is_finished_once(system: System) -> None:
    job_id = system.staged_and_drained(jobs.hang_once, "twice")
    with drain_command("work", env=system.environment()) as command:
        wait_until(system.effects, PATIENCE_SECONDS)
        command.kill()
        command.wait(PATIENCE_SECONDS)
    system.drain_work()
    assert system.whereabouts(job_id) == "inflight_jobs"
    assert system.redeliver() == 0
    system.end_lease(job_id)
    assert system.redeliver() == 1
    system.drain_work()
    assert system.whereabouts(job_id) == "finished_jobs"
    finished = system.row("finished_jobs", job_id)
    assert (finished["attempts"], finished["fencing_token"]) == (2, 2)
    assert system.effects() == ["twice", "twice"]


def test_a_job_that_kills_its_work_horse_leaves_the_rq_worker_alive(system: System) -> None:
    killer = system.stage(jobs.kill_the_process_once, "killer")
    after = system.stage(jobs.record, "after", priority=1)
    system.drain()
    system.rq_worker()
    assert system.whereabouts(after) == "finished_jobs"
    assert system.row("inflight_jobs", killer)["lease_expires_at"] is not None
    system.end_lease(killer)
    system.redeliver()
    system.rq_worker()
    assert system.whereabouts(killer) == "finished_jobs"
    assert system.effects() == ["killer", "after", "killer"]


def test_a_worker_that_stalls_for_longer_than_its_lease_finishes_nothing(system: System) -> None:
    job_id = system.staged_and_drained(jobs.wait_for_go, "contested")
    with drain_command("work", env=system.environment()) as stalled:
        wait_until(system.effects, PATIENCE_SECONDS)
        stalled.signal_all(signal.SIGSTOP)
        system.end_lease(job_id)
        system.redeliver()
        with drain_command("work", "--burst", env=system.environment()) as successor:
            wait_until(lambda: len(system.effects()) == 2, PATIENCE_SECONDS)
            successor.signal_all(signal.SIGSTOP)
            (pid,) = successor.children()
            jobs.leave_effect(system.database_url, "go")
            stalled.signal_all(signal.SIGCONT)
            (event,) = wait_until(lambda: stalled.events("stale_finish"))
            assert event["job_id"] == job_id
            assert system.whereabouts(job_id) == "inflight_jobs"
            successor.signal_all(signal.SIGCONT)
            assert successor.wait(PATIENCE_SECONDS) == 0
    finished = system.row("finished_jobs", job_id)
    assert finished["fencing_token"] == 2
    assert f":{pid}:" in finished["finished_by"]


@pytest.mark.parametrize("work", [System.rq_worker, System.drain_work], ids=["rq worker", "drain work"])
def test_a_worker_drops_a_job_that_was_taken_over_and_continues(
    system: System, work: Callable[[System], str]
) -> None:
    contested = system.stage(jobs.sleep_on_a_short_lease, "contested")
    after = system.stage(jobs.record, "after", priority=1)
    system.drain()

    def taken_over() -> bool:
        # In one transaction, so that no heartbeat comes in between.
        with psycopg.connect(system.database_url) as connection:
            connection.execute(
                "UPDATE inflight_jobs SET lease_expires_at = clock_timestamp() - interval '1 ms' WHERE id = %s",
                [contested],
            )
            return claims.claim(connection, contested, worker="the other", limits={}) is not None

    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(work, system)
        wait_until(system.effects, PATIENCE_SECONDS)
        wait_until(taken_over)
        ended.result(PATIENCE_SECONDS)
    assert system.effects() == ["contested", "after"]
    assert system.whereabouts(after) == "finished_jobs"
    assert system.row("inflight_jobs", contested)["claimed_by"] == "the other"
    (stale,) = system.execute("SELECT * FROM stale_finishes")
    assert (stale["id"], stale["fencing_token"], stale["outcome"]) == (contested, 1, "nothing")


def test_a_job_that_killed_its_worker_on_its_last_attempt_is_dead(system: System) -> None:
    job_id = system.staged_and_drained(jobs.kill_the_process_once, "the end", max_attempts=1)
    system.rq_worker()
    system.end_lease(job_id)
    system.redeliver()
    system.drain_work()
    assert system.row("dead_jobs", job_id)["reason"] == "lease"
    assert system.effects() == ["the end"]


def test_a_job_that_kills_every_process_is_dead_after_its_attempts(
    system: System,
) -> None:
    job_id = system.stage(jobs.kill_the_process, "killer")
    with (
        drain_command("run", "--metrics-port", "0", env=system.environment()),
        drain_command("work", env=system.environment()) as worker,
    ):
        wait_until(lambda: system.whereabouts(job_id) == "dead_jobs", PATIENCE_SECONDS)
        after = system.stage(jobs.record, "after")
        wait_until(lambda: system.whereabouts(after) == "finished_jobs", PATIENCE_SECONDS)
        assert worker.poll() is None
        assert len(worker.events("worker_died")) == 2
    dead = system.row("dead_jobs", job_id)
    assert (dead["reason"], dead["attempts"], dead["fencing_token"]) == ("failed", 2, 2)
    assert dead["last_error"]["type"] == "drain.workers.errors.WorkerDiedError"
    assert dead["last_error"]["message"] == "its worker process was killed by SIGKILL"
    assert system.effects() == ["killer", "killer", "after"]


def test_a_job_that_kills_every_machine_is_dead_after_its_attempts(
    system: System,
) -> None:
    job_id = system.stage(jobs.kill_the_machine, "killer")
    with drain_command("run", "--metrics-port", "0", env=system.environment()):
        for _ in range(2):
            with drain_command("work", env=system.environment()) as worker:
                assert worker.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        with drain_command("work", env=system.environment()):
            wait_until(lambda: system.whereabouts(job_id) == "dead_jobs", PATIENCE_SECONDS)
    dead = system.row("dead_jobs", job_id)
    assert (dead["reason"], dead["attempts"], dead["fencing_token"]) == ("lease", 2, 3)
    assert "the lease ran out" in dead["explanation"]
    assert system.effects() == ["killer"] * 2


@pytest.mark.parametrize("work", [System.rq_worker, System.drain_work], ids=["rq worker", "drain work"])
def test_a_worker_keeps_a_job_that_takes_longer_than_its_lease(
    system: System, work: Callable[[System], str]
) -> None:
    job_id = system.stage(jobs.outlive_the_lease, "long")
    system.drain()
    with drain_command("run", "--metrics-port", "0", env=system.environment()):
        work(system)
    assert system.row("finished_jobs", job_id)["fencing_token"] == 1
    assert system.effects() == ["long"]


@pytest.mark.parametrize("work", [System.rq_worker, System.drain_work], ids=["rq worker", "drain work"])
def test_the_return_value_does_not_affect_rqs_records(system: System, work: Callable[[System], str]) -> None:
    job_id = system.staged_and_drained(jobs.return_what_nobody_can_pickle, "returned")
    (rq_id,) = pushed(system.redis_url)
    output = work(system)
    assert system.whereabouts(job_id) == "finished_jobs"
    assert "Traceback" not in output
    with Redis.from_url(system.redis_url) as client:
        if work is System.drain_work:
            assert not Job.exists(rq_id, connection=client)
            return
        kept = Job.fetch(rq_id, connection=client)
        assert (kept.get_status(), kept.return_value()) == ("finished", "finished")


def test_claims_and_outcomes_are_retried_until_postgres_recovers(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    started, stopped = threading.Event(), threading.Event()

    def has_failed() -> bool:
        return any("trying again" in message for message in caplog.messages)

    with EmbeddedPostgres(settings=CARELESS) as postgres:
        schema.install(postgres.url)
        system = System(postgres.url, redis_url)

        @job(name="stop")
        def stop_postgres() -> None:
            assert started.wait(PATIENCE_SECONDS)
            caplog.clear()
            postgres.stop()
            stopped.set()

        job_id = system.staged_and_drained(stop_postgres)
        with closing(Worker(Settings(database_url=postgres.url))) as worker, ThreadPoolExecutor(1) as thread:
            postgres.stop()
            outcome = thread.submit(worker.execute, job_id)
            wait_until(has_failed)
            postgres.start()
            started.set()
            assert stopped.wait(PATIENCE_SECONDS)
            wait_until(has_failed)
            postgres.start()
            assert outcome.result(PATIENCE_SECONDS) == "finished"
        assert system.row("finished_jobs", job_id)["attempts"] == 1


# --- deliveries


def test_a_job_that_was_delivered_three_times_runs_once(system: System) -> None:
    job_id = system.staged_and_drained(jobs.record, "once")
    first = system.row("inflight_jobs", job_id)["delivery"]
    with closing(Producer(system.redis_url, NAMESPACE)) as redis:
        for delivery in (first, first + 1):
            redis.push([tracked(NAMESPACE, job_id, "default", "record", None, delivery)])
    assert redis_list(system) == 3
    system.rq_worker()
    assert redis_list(system) == 0
    assert system.effects() == ["once"]
    assert system.row("finished_jobs", job_id)["fencing_token"] == 1


def test_redis_sees_only_the_entry_point_and_errors_of_dead_jobs(
    system: System,
) -> None:
    system.stage(jobs.record, MARKER)
    system.stage(jobs.fail_times, MARKER, 1, tag=MARKER, context={"trace": MARKER})
    system.stage(jobs.raise_text, json.dumps(MARKER))
    system.drain()
    for worked in (False, True):
        if worked:
            system.rq_worker()
            assert system.effects() == [MARKER, MARKER]
        everything = everything_in(system.redis_url)
        calls = [text for name, text in everything if name.startswith("rq:job:") and name.endswith(" data")]
        assert len(calls) == 3
        # Whatever follows this module's name leads to the entry point.
        assert all("drain.rq." in call for call in calls)
        assert not any("tests.jobs_for_tests" in call for call in calls)
        # RQ's books tell of a dead job what it raised, which may be anything.
        told = [name for name, text in everything if MARKER in name + text]
        assert len(told) == (1 if worked else 0)
        assert all(name.startswith("rq:results:") for name in told)


@pytest.mark.parametrize(
    "function", [jobs.record, jobs.leave_unregistered], ids=["registered", "plain function"]
)
def test_forward_mode_runs_the_function_itself_under_rq_worker(
    system: System, function: Callable[[str], None]
) -> None:
    system.stage(function, "forwarded", queue="plain")
    system.drain(forward_queues=frozenset({"plain"}))
    assert [system.execute(f"SELECT 1 FROM {table}") for table in TABLES] == [[], [], [], []]
    system.rq_worker("plain")
    assert system.effects() == ["forwarded"]


def test_rolled_back_transactions_run_no_job_and_committed_ones_run_once(
    system: System,
) -> None:
    system.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    with ExitStack() as processes:
        for words in (("run", "--metrics-port", "0"), ("work", "orders"), ("work", "orders")):
            processes.enter_context(drain_command(*words, env=system.environment()))
        with ThreadPoolExecutor(4) as applications:
            committed = sorted(
                order_id
                for orders in applications.map(
                    lambda first: take_orders(system.database_url, range(first, 200, 4)), range(4)
                )
                for order_id in orders
            )
        wait_until(
            lambda: len(system.execute("SELECT 1 FROM finished_jobs")) >= len(committed), PATIENCE_SECONDS
        )
    assert 100 < len(committed) < 200
    assert sorted(system.effects()) == sorted(f"{order_id} seen" for order_id in committed)
    finished = system.execute("SELECT job_args FROM finished_jobs ORDER BY job_args")
    assert [row["job_args"] for row in finished] == [[order_id] for order_id in committed]
    for table in ("staged_jobs", "inflight_jobs", "dead_jobs"):
        assert system.execute(f"SELECT 1 FROM {table}") == []


def take_orders(database_url: str, order_ids: Sequence[int]) -> list[int]:
    """One transaction for each order, of which two overlap: the one that stages later commits earlier."""
    committed = []

    def end(connection: psycopg.Connection, order_id: int) -> None:
        if order_id % 3:
            connection.commit()
            committed.append(order_id)
        else:
            connection.rollback()

    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as other:
        for pair in zip(order_ids[::2], order_ids[1::2], strict=True):
            for connection, order_id in zip((one, other), pair, strict=True):
                connection.execute("INSERT INTO orders VALUES (%s)", [order_id])
                jobs.ship.stage(connection, order_id)
            end(other, pair[1])
            end(one, pair[0])
    return committed


# --- modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def (", "SyntaxError: "),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_drain_work_ends_with_one_line_when_a_job_module_does_not_import(
    system: System, tmp_path: Path, source: str, reason: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    with drain_command("work", env=system.environment(DRAIN_JOBS="broken", PYTHONPATH=str(tmp_path))) as work:
        assert work.wait(PATIENCE_SECONDS) == 1
        (line,) = work.output.splitlines()
    assert line.startswith(f"Error: the job module 'broken' cannot be imported: {reason}")


def test_drain_work_ends_with_one_line_when_no_job_module_is_named(system: System) -> None:
    with drain_command("work", env=system.environment(DRAIN_JOBS="")) as work:
        assert work.wait(PATIENCE_SECONDS) == 1
        (line,) = work.output.splitlines()
    assert "set DRAIN_JOBS" in line


@pytest.mark.parametrize(
    "wrong",
    [{"DRAIN_JOBS": "broken"}, {"DRAIN_JOBS": ""}, {"DRAIN_DATABASE_URL": ""}],
    ids=["a module that cannot be imported", "no module", "no database"],
)
def test_a_job_survives_misconfigured_rq_workers(
    system: System, tmp_path: Path, wrong: dict[str, str]
) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found")
    job_id = system.staged_and_drained(jobs.record, "late")
    output = system.rq_worker(PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}", **wrong)
    assert next(iter(wrong)) in output
    assert system.whereabouts(job_id) == "inflight_jobs"
    assert system.row("inflight_jobs", job_id)["attempts"] == 0
    assert system.redeliver() == 1
    system.rq_worker()
    assert system.whereabouts(job_id) == "finished_jobs"
    assert system.effects() == ["late"]


def redis_list(system: System) -> int:
    with closing(Producer(system.redis_url, NAMESPACE)) as redis:
        return redis.depth("default")


def everything_in(redis_url: str) -> list[tuple[str, str]]:
    """All that Redis holds, as names and texts: of each hash its fields, of every other key its value."""
    texts = []
    with Redis.from_url(redis_url) as client:
        for key in client.scan_iter():
            texts += [(f"{_name(key)} {field}", value) for field, value in _values(client, key)]
    return texts


def _values(client: Any, key: bytes | str) -> list[tuple[str, str]]:
    kind = _name(client.type(key))
    if kind == "hash":
        return [(_name(field), _flat(value)) for field, value in client.hgetall(key).items()]
    read: dict[str, Callable[[], Any]] = {
        "string": lambda: client.get(key),
        "list": lambda: client.lrange(key, 0, -1),
        "set": lambda: client.smembers(key),
        "zset": lambda: client.zrange(key, 0, -1, withscores=True),
        "stream": lambda: [[*entry.items()] for _, entry in client.xrange(key)],
    }
    return [("", _flat(read[kind]()))]


def _flat(value: Any) -> str:
    """RQ compresses some texts, and of those writes some in base 64."""
    if isinstance(value, list | tuple | set):
        return " ".join(map(_flat, value))
    for unpack in (zlib.decompress, lambda packed: zlib.decompress(base64.b64decode(packed))):
        with suppress(ValueError, TypeError, zlib.error):
            return repr(unpack(value))
    return repr(value)


def _name(text: bytes | str) -> str:
    return text if isinstance(text, str) else text.decode()


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_drain_work_survives_a_redis_outage_during_a_job(
    database_url: str, number: signal.Signals | None
) -> None:
    with EmbeddedRedis() as redis:
        system = System(database_url, redis.url)
        jobs.create_effects(database_url)
        first = system.staged_and_drained(jobs.wait_for_go, "first")
        with drain_command("work", env=system.environment()) as command:
            wait_until(system.effects, PATIENCE_SECONDS)
            redis.kill()
            jobs.leave_effect(database_url, "go")
            wait_until(lambda: command.events("down"), PATIENCE_SECONDS)
            # Whoever finishes jobs is not whoever looks for more.
            wait_until(lambda: system.whereabouts(first) == "finished_jobs", PATIENCE_SECONDS)
            if number:
                command.send_signal(number)
                assert command.wait(PATIENCE_SECONDS) == 0
                return
            redis.start()
            second = system.staged_and_drained(jobs.record, "second")
            wait_until(lambda: system.whereabouts(second) == "finished_jobs", PATIENCE_SECONDS)
            wait_until(lambda: command.events("up"))
            assert command.poll() is None
