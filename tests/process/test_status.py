"""`drain status` tells what waits, what runs, and who works on each queue."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis
from rq import Queue, SimpleWorker, Worker

from drain.__main__ import main
from drain.commands import watching
from drain.database import postgres
from drain.embedded import Services
from drain.errors import UnavailableError
from drain.read import system
from drain.tables import claims, outcomes
from drain.wire import Producer
from tests.helpers import (
    DRAIN,
    NAMESPACE,
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    environment,
    new_enqueuer,
    query,
    stage_jobs,
    wait_until,
)

AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    return environment(database_url, redis_url)


def status_of(env: dict[str, str], *words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["status", "--json", *words], env=env)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def drained(database_url: str, redis_url: str, count: int, queue: str = "default") -> list[int]:
    ids = stage_jobs(database_url, count, queue=queue)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    return ids


# --- what is in flight


def test_inflight_jobs_are_divided_into_queued_running_and_retrying(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    first, second, running, retrying, lapsed = drained(database_url, redis_url, 5)
    with closing(postgres.connect(database_url, "worker")) as connection:
        for job_id in (running, retrying, lapsed):
            claim = claims.claim(connection, job_id, worker="w", limits={})
            assert claim is not None
            if job_id == retrying:
                assert outcomes.retry_later(connection, claim, 60, {"message": ""})
    query(database_url, "UPDATE inflight_jobs SET lease_expires_at = now() WHERE id = %s", lapsed)
    query(
        database_url,
        "UPDATE inflight_jobs SET staged_at = staged_at - interval '1 hour', "
        "scheduled_at = scheduled_at - interval '1 hour' WHERE id = %s",
        second,
    )

    status = status_of(env)

    parts = ("inflight", "queued", "running", "retrying")
    assert [status[part] for part in parts] == [5, 3, 1, 1]
    counts = status["queues"]["default"]
    assert [counts[part] for part in parts] == [5, 3, 1, 1]
    assert counts["oldest_unclaimed_id"] == second
    assert 3600 <= counts["oldest_unclaimed_seconds"] < 3700
    assert first < second


def test_a_queue_without_waiting_jobs_has_no_oldest_one(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    _, retrying = drained(database_url, redis_url, 2)
    stage_jobs(database_url, queue="mail")
    query(
        database_url,
        f"UPDATE inflight_jobs SET claimed_at = now(), next_run_at = CASE id WHEN {retrying} THEN now() END, "
        f"lease_expires_at = CASE id WHEN {retrying} THEN NULL ELSE now() + interval '1 minute' END",
    )

    for queue in status_of(env)["queues"].values():
        assert queue["oldest_unclaimed_id"] is None
        assert queue["oldest_unclaimed_seconds"] is None


def test_a_job_whose_lease_ran_out_has_waited_since_then(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    (job_id,) = drained(database_url, redis_url, 1)
    query(
        database_url,
        "UPDATE inflight_jobs SET moved_at = now() - interval '1 day', claimed_at = now() - interval '1 day', "
        "lease_expires_at = now() - interval '1 hour'",
    )

    counts = status_of(env)["queues"]["default"]
    assert counts["oldest_unclaimed_id"] == job_id
    assert 3600 <= counts["oldest_unclaimed_seconds"] < 3700


def test_a_revived_job_has_waited_since_it_was_drained_again(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    drained(database_url, redis_url, 1)
    query(
        database_url,
        "UPDATE inflight_jobs SET staged_at = staged_at - interval '1 day', history = '[]', "
        "scheduled_at = scheduled_at - interval '1 day'",
    )

    assert status_of(env)["queues"]["default"]["oldest_unclaimed_seconds"] < 600


def test_due_scheduled_jobs_that_were_not_drained_are_overdue(database_url: str, env: dict[str, str]) -> None:
    late, later, fresh = stage_jobs(database_url, 3)
    for job_id, interval in ((late, "-1 minute"), (later, "1 hour")):
        query(
            database_url,
            "UPDATE staged_jobs SET staged_at = now() - interval '1 hour', scheduled_at = now() + %s::interval "
            "WHERE id = %s",
            interval,
            job_id,
        )
    # Its transaction committed just now.
    query(
        database_url,
        "UPDATE staged_jobs SET staged_at = now(), scheduled_at = now() - interval '1 hour' WHERE id = %s",
        fresh,
    )

    status = status_of(env)

    # The leader should have moved the first one long ago, and so all that are due.
    expected = {"staged": 3, "scheduled": 1, "overdue": 2}
    assert {name: status[name] for name in expected} == expected
    assert {name: status["queues"]["default"][name] for name in expected} == expected
    assert "2 overdue" in CliRunner().invoke(main, ["status"], env=env).stdout


# --- who works


@pytest.mark.usefixtures("processes")
def test_stock_workers_and_drain_work_processes_are_counted_for_each_queue(
    database_url: str, redis_url: str, env: dict[str, str], client: Redis
) -> None:
    drained(database_url, redis_url, 1, queue="mail")
    drained(database_url, redis_url, 1, queue="video")
    stage_jobs(database_url, queue="letters")
    stock = Worker(["mail", "letters"], connection=client)
    stock.register_birth()  # type: ignore[no-untyped-call]
    program = (
        "from drain.wire import Consumer; Consumer.pop = lambda *a, **k: __import__('time').sleep(0.01) or []\n"
        + DRAIN
    )
    words = ("work", "mail", "--processes", "2", "--jobs", "tests.jobs_for_tests")
    with drain_command(*words, env=env | {"PYTHONPATH": str(ROOT)}, program=program):
        wait_until(lambda: status_of(env)["queues"]["mail"]["workers"] == 3, PATIENCE_SECONDS)
        workers = {queue: counts["workers"] for queue, counts in status_of(env)["queues"].items()}
        assert workers == {"mail": 3, "video": 0, "letters": 1}
        text = CliRunner().invoke(main, ["status"], env=env).stdout

    assert "video: 1 job and no worker; start `drain work video`" in text
    assert "drain work mail" not in text


def test_the_companion_that_takes_plain_jobs_only_is_not_counted(redis_url: str, client: Redis) -> None:
    for name in ("alone", "pair", "pair.tracked", "tracked-only.tracked"):
        SimpleWorker(["mail"], name=name, connection=client).register_birth()  # type: ignore[no-untyped-call]

    with closing(Producer(redis_url, NAMESPACE)) as redis:
        assert redis.workers(["mail", "other"]) == {"mail": 3, "other": 0}


def test_a_worker_that_died_or_left_is_not_counted(redis_url: str, client: Redis) -> None:
    died, left, lives = (SimpleWorker(["mail"], connection=client) for _ in range(3))
    for worker in (died, left, lives):
        worker.register_birth()  # type: ignore[no-untyped-call]
    client.delete(died.key)
    left.register_death()  # type: ignore[no-untyped-call]
    client.set("rq:workers:broken", "no set")

    with closing(Producer(redis_url, NAMESPACE)) as redis:
        assert redis.workers(["mail", "broken"]) == {"mail": 1, "broken": 0}
        assert redis.workers([]) == {}


def test_a_queue_of_dead_jobs_needs_no_worker(database_url: str, redis_url: str, env: dict[str, str]) -> None:
    drained(database_url, redis_url, 1)
    query(
        database_url,
        "WITH gone AS (DELETE FROM inflight_jobs RETURNING *) INSERT INTO dead_jobs (id, job_name, job_args, "
        "job_kwargs, queue, priority, scheduled_at, staged_at, reason, explanation) SELECT id, job_name, job_args, "
        "job_kwargs, queue, priority, scheduled_at, staged_at, 'failed', '' FROM gone",
    )

    assert status_of(env)["queues"]["default"]["workers"] == 0
    assert "drain work" not in CliRunner().invoke(main, ["status"], env=env).stdout


@pytest.mark.parametrize("redis", ["", AWAY])
def test_without_redis_workers_are_unknown_and_the_rest_is_shown(
    database_url: str, env: dict[str, str], redis: str
) -> None:
    stage_jobs(database_url, 7)
    env |= {"DRAIN_REDIS_URL": redis}

    found = CliRunner().invoke(main, ["status", "--json"], env=env)
    counts = json.loads(found.stdout)["queues"]["default"]
    assert (counts["staged"], counts["workers"], counts["redis_depth"]) == (7, None, None)
    result = CliRunner().invoke(main, ["status"], env=env)
    # Only a named Redis is asked.
    assert found.exit_code == result.exit_code == (3 if redis else 0)
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("default ")]
    assert row.split()[:3] == ["default", "?", "7"]
    assert bool(redis) is ("127.0.0.1:1" in result.stderr)


def test_no_job_in_redis_is_unpickled(
    database_url: str, redis_url: str, env: dict[str, str], client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue("default", connection=client).enqueue(print)
    stage_jobs(database_url)
    monkeypatch.setattr("pickle.loads", lambda *_: pytest.fail("unpickled"))

    assert status_of(env)["queues"]["default"]["redis_depth"] == 1


# --- again and again


@pytest.mark.usefixtures("processes")
def test_a_watched_json_status_prints_a_line_each_time_until_ctrl_c(
    database_url: str, env: dict[str, str]
) -> None:
    stage_jobs(database_url, 2)
    with drain_command("status", "--watch", "0.1", "--json", env=env) as command:
        wait_until(lambda: len(command.output.splitlines()) >= 2, PATIENCE_SECONDS)
        stage_jobs(database_url, 3)
        wait_until(lambda: '"staged": 5' in command.output.splitlines()[-1], PATIENCE_SECONDS)
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE_SECONDS) == 0
        assert all(json.loads(line)["staged"] in (2, 5) for line in command.output.splitlines())


@pytest.mark.usefixtures("processes")
def test_a_watched_status_in_a_pipe_prints_successive_blocks(database_url: str, env: dict[str, str]) -> None:
    stage_jobs(database_url, 2)
    with drain_command("status", "--watch", "0.1", env=env) as command:
        wait_until(lambda: command.output.count("leader ") >= 3, PATIENCE_SECONDS)
        assert "\x1b" not in command.output


@pytest.mark.usefixtures("processes")
def test_a_watched_status_is_redrawn_in_place_on_a_terminal(database_url: str, env: dict[str, str]) -> None:
    stage_jobs(database_url, 2)
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-c", DRAIN, "status", "--watch", "0.1"],
        env=env | {"TERM": "xterm", "COLUMNS": "80", "LINES": "30"},
        cwd=ROOT,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        shown = b""
        while shown.count(b"\x1b[1A") < 10:
            shown += os.read(ours, 10_000)
        command.send_signal(signal.SIGINT)
        with suppress(OSError):
            while data := os.read(ours, 10_000):
                shown += data
        assert command.wait(PATIENCE_SECONDS) == 0
    finally:
        command.kill()
        command.wait()
        os.close(ours)
    assert b"Traceback" not in shown
    assert b"default" in shown


def test_a_watched_status_prints_one_line_per_outage_and_recovery(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: Iterator[Any] = iter(
        [
            (system.System(datetime.now(UTC)), None),
            UnavailableError("PostgreSQL at x cannot be used: gone"),
            UnavailableError("PostgreSQL at x cannot be used: still gone"),
            (system.System(datetime.now(UTC)), "Redis at y does not take commands"),
            (system.System(datetime.now(UTC)), None),
            KeyboardInterrupt(),
        ]
    )

    def look() -> Any:
        found = next(looks)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(watching, "sleep", lambda _: None)
    watching.watch_status(look, 1, as_json=True)

    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err.splitlines() == [
        "PostgreSQL at x cannot be used: gone; trying again",
        "PostgreSQL and Redis are reachable again",
    ]


@pytest.mark.usefixtures("processes")
def test_a_watched_status_continues_after_a_postgresql_outage(
    servers: Services, database_url: str, env: dict[str, str]
) -> None:
    ((name,),) = query(database_url, "SELECT current_database()")
    other = servers.postgres.url_of("postgres")
    with drain_command("status", "--watch", "0.1", "--json", env=env) as command:
        wait_until(lambda: '"staged"' in command.output, PATIENCE_SECONDS)
        query(other, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        wait_until(lambda: "trying again" in command.output, PATIENCE_SECONDS)
        query(other, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        wait_until(lambda: "reachable again" in command.output, PATIENCE_SECONDS)
        assert command.output.count("trying again") == 1


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan"])
def test_a_watch_interval_of_zero_is_a_usage_error(env: dict[str, str], seconds: str) -> None:
    assert CliRunner().invoke(main, ["status", "--watch", seconds], env=env).exit_code == 2
