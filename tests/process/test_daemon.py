"""`drain run` as a process of its own."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from drain import stage
from drain.config import Settings
from drain.database import postgres
from drain.enqueuer import daemon as daemon_module, leader, sleeper
from drain.enqueuer.daemon import Daemon
from drain.errors import UnavailableError
from drain.tables import lanes
from drain.wire import Producer
from tests.helpers import (
    PATIENCE_SECONDS,
    ask,
    drain_command,
    end,
    environment,
    free_port,
    ids_in,
    is_asleep,
    leading,
    new_enqueuer,
    pushed,
    pushed_jobs,
    query,
    read_by,
    stage_jobs,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    return environment(database_url, redis_url)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_job_committed_while_the_leader_sleeps_is_drained(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with leading(env):
        for _ in range(3):
            wait_until(lambda: is_asleep(database_url))
            (job_id,) = stage_jobs(database_url)
            wait_until(lambda job_id=job_id: job_id in pushed_jobs(redis_url))  # type: ignore[misc]

    assert pushed_jobs(redis_url) == ids_in(database_url, "inflight_jobs")


def test_a_commit_wakes_the_sleeping_leader(database_url: str) -> None:
    with closing(postgres.connect(database_url, "test")) as connection:
        assert leader.try_to_lead(connection) is not None
        with leader.asleep(connection):
            # Twice as long as the test waits for it to end.
            sleeper = threading.Thread(target=leader.wait_for_notify, args=(connection, 20), daemon=True)
            sleeper.start()
            stage_jobs(database_url)
            wait_until(lambda: not sleeper.is_alive(), seconds=10)


def test_a_job_committed_without_a_notification_is_found_by_polling(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with leading(env):
        wait_until(lambda: is_asleep(database_url))
        with psycopg.connect(database_url) as connection:
            connection.execute("SET drain.notify = 'off'")
            job_id = stage(connection, "m.f")
        wait_until(lambda: pushed_jobs(redis_url) == [job_id])


def test_a_transaction_begun_before_the_sleep_is_drained_once_it_commits(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with leading(env), psycopg.connect(database_url) as connection:
        job_id = stage(connection, "m.f")
        (other,) = stage_jobs(database_url)
        wait_until(lambda: pushed_jobs(redis_url) == [other])

        connection.commit()
        wait_until(lambda: pushed_jobs(redis_url) == [other, job_id])


def test_a_scheduled_job_is_drained_by_the_databases_clock(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with leading(env):
        query(
            database_url,
            "INSERT INTO staged_jobs (job_name, scheduled_at) VALUES ('m.f', now() + interval '300 ms')",
        )
        wait_until(lambda: pushed_jobs(redis_url) == [1])

    early = query(database_url, "SELECT FROM inflight_jobs WHERE moved_at < scheduled_at")
    assert early == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_the_leader_cleanly(
    database_url: str, redis_url: str, env: dict[str, str], number: int
) -> None:
    ids = stage_jobs(database_url, 500)
    with leading(env | {"DRAIN_BATCH_SIZE": "10"}) as process:
        assert end(process, number) == 0
        assert "Traceback" not in process.output

    # What it had taken has been pushed, and nothing else has left.
    left = ids_in(database_url, "staged_jobs")
    assert pushed_jobs(redis_url) == ids_in(database_url, "inflight_jobs") == ids[: len(ids) - len(left)]


def test_a_signal_stops_a_standby(database_url: str, redis_url: str, env: dict[str, str]) -> None:
    with (
        new_enqueuer(database_url, redis_url),
        drain_command("run", "--metrics-port", "0", env=env) as standby,
    ):
        wait_until(lambda: standby.events("up"), PATIENCE_SECONDS)
        assert end(standby) == 0


def test_once_drains_the_due_jobs_and_exits(database_url: str, redis_url: str, env: dict[str, str]) -> None:
    ids = stage_jobs(database_url, 3)
    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, scheduled_at) VALUES ('m.f', now() + interval '1 hour')",
    )
    with drain_command("run", "--once", env=env) as process:
        assert process.wait(PATIENCE_SECONDS) == 0
        assert "3 jobs" in process.output

    assert pushed_jobs(redis_url) == ids
    assert len(ids_in(database_url, "staged_jobs")) == 1


def test_once_counts_only_the_jobs_pushed_to_redis(database_url: str, env: dict[str, str]) -> None:
    stage_jobs(database_url, 2)
    stage_jobs(database_url, 3, expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    with drain_command("run", "--once", env=env) as process:
        assert process.wait(PATIENCE_SECONDS) == 0
        assert "2 jobs" in process.output


def test_once_is_refused_while_another_enqueuer_leads(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    stage_jobs(database_url)
    with new_enqueuer(database_url, redis_url), drain_command("run", "--once", env=env) as process:
        assert process.wait(PATIENCE_SECONDS) == 1
        (line,) = process.output.splitlines()

    assert "another enqueuer" in line
    assert pushed(redis_url) == []


def test_the_port_serves_metrics_and_probes(database_url: str, redis_url: str, env: dict[str, str]) -> None:
    port = free_port()
    stage_jobs(database_url, 3)
    with drain_command("run", "--metrics-port", str(port), env=env) as process:
        wait_until(lambda: process.events("leading"), PATIENCE_SECONDS)
        wait_until(lambda: len(pushed(redis_url)) == 3)

        assert ask(port, "/healthz") == (200, "ok\n")
        assert ask(port, "/readyz") == (200, "ok\n")
        assert ask(port, "/anything")[0] == 404
        wait_until(lambda: 'drain_pushed_jobs_total{queue="default"} 3.0' in ask(port, "/metrics")[1])
        metrics = ask(port, "/metrics")[1]
    for line in (
        "drain_leader 1.0",
        "drain_moved_jobs_total 3.0",
        "drain_batch_jobs_sum 3.0",
        "drain_push_seconds_count 1.0",
        "drain_staged_jobs ",
        "drain_dead_jobs_kept ",
        "drain_lag_seconds ",
        "# TYPE drain_redis_depth gauge",
        "# TYPE drain_failures_total counter",
        "# TYPE drain_dead_jobs_total counter",
    ):
        assert line in metrics


def test_a_port_in_use_is_a_warning_and_jobs_are_still_drained(
    database_url: str, redis_url: str, env: dict[str, str], taken_port: int
) -> None:
    stage_jobs(database_url)
    with drain_command("run", "--metrics-port", str(taken_port), env=env) as process:
        wait_until(lambda: pushed(redis_url), PATIENCE_SECONDS)
        (line,) = process.events("port_taken")

    assert line["level"] == "warning"
    assert str(taken_port) in line["message"]
    assert "--metrics-port" in line["message"]


def test_metrics_port_0_serves_nothing(env: dict[str, str], taken_port: int) -> None:
    # Whoever listened here would fail.
    with leading(env | {"DRAIN_METRICS_PORT": str(taken_port)}) as process:
        assert "metrics" not in process.output


def test_run_reports_a_missing_schema_on_one_line(empty_database_url: str, redis_url: str) -> None:
    with drain_command(
        "run", "--metrics-port", "0", env=environment(empty_database_url, redis_url)
    ) as process:
        assert process.wait(PATIENCE_SECONDS) == 1
        (line,) = process.output.splitlines()

    assert "drain init" in line


def test_log_lines_are_json_without_a_terminal(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with leading(env) as process:
        stage_jobs(database_url)
        wait_until(lambda: pushed(redis_url))
        assert end(process) == 0
        lines = [json.loads(line) for line in process.output.splitlines()]

    assert len(lines) >= 2
    for line in lines:
        assert {"time", "level", "logger", "message"} <= line.keys()


@pytest.fixture(params=["a path", "an abstract name"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """The socket on which systemd listens, and what it calls it."""
    abstract = request.param == "an abstract name"
    name = f"drain-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}" if abstract else name)
        listener.settimeout(PATIENCE_SECONDS)
        yield listener, f"@{name}" if abstract else name


def test_systemd_is_notified_of_readiness_liveness_and_stopping(
    env: dict[str, str], systemd: tuple[socket.socket, str]
) -> None:
    listener, name = systemd
    heard: list[str] = []

    def hears(word: str) -> bool:
        while word not in heard:
            heard.extend(listener.recv(4096).decode().splitlines())
        return True

    with leading(env | {"NOTIFY_SOCKET": name}) as process:
        assert hears("READY=1")
        assert hears("STATUS=leading")
        heard.clear()
        assert hears("WATCHDOG=1")
        assert "STOPPING=1" not in heard
        process.send_signal(signal.SIGTERM)
        assert hears("STOPPING=1")
        assert process.wait(PATIENCE_SECONDS) == 0


def test_a_job_committed_as_the_leader_falls_asleep_is_drained_first(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[list[int]] = []

    def wait(_connection: postgres.Connection, seconds: float) -> set[str]:
        if seconds > sleeper._BRIEF_SECONDS:
            waited.append(ids_in(database_url, "staged_jobs"))
            daemon.stop()
        return set()

    monkeypatch.setattr(leader, "wait_for_notify", wait)
    daemon = Daemon(Settings(database_url=database_url, redis_url=redis_url))
    # Somebody commits just before the lock is taken, and does not notify.
    monkeypatch.setattr(leader, "asleep", lambda connection: _asleep(lambda: stage_jobs(database_url)))
    daemon.run()
    assert waited == [[]]
    # Several if a slow search ended a sleep, and another one began.
    pushed_ids = pushed_jobs(redis_url, namespace=daemon.settings.namespace)
    assert pushed_ids
    assert pushed_ids == ids_in(database_url, "inflight_jobs")


@contextmanager
def _asleep(first: Callable[[], object]) -> Iterator[bool]:
    first()
    yield True


def nobody_leads(database_url: str) -> bool:
    return not query(
        database_url,
        "SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND objid = 1 "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )


def test_waits_grow_until_a_batch_succeeds(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []
    refuses = iter([True, True, True, False, True])
    push = Producer.push_together

    def push_or_refuse(wire: Producer, deliveries: Any) -> list[str]:
        if next(refuses):
            raise UnavailableError("Redis does not take commands")
        refused = push(wire, deliveries)
        stage_jobs(database_url, queue="mail")
        return refused

    def count(number: int) -> float:
        failures.append(number)
        if len(failures) == 4:
            daemon.stop()
        # Who found the lock still held would stand by, which is well, too.
        wait_until(lambda: nobody_leads(database_url))
        return 0.0

    monkeypatch.setattr(Producer, "push_together", push_or_refuse)
    monkeypatch.setattr(daemon_module, "_backoff", count)
    stage_jobs(database_url, queue="mail")
    daemon = Daemon(
        Settings(database_url=database_url, redis_url=redis_url, forward_queues=frozenset({"mail"}))
    )
    daemon.run()

    assert failures == [1, 2, 3, 1]


def test_the_next_term_keeps_the_reduced_batch_size(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    take = lanes.read_due

    stage_jobs(database_url)

    def take_with_trouble(
        connection: postgres.Connection, heads: Sequence[lanes.Head], **options: Any
    ) -> Any:
        limits.append(heads[0].most)
        if len(limits) == 1:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        if len(limits) == 2:
            raise psycopg.OperationalError("the server is gone")
        daemon.stop()
        return take(connection, heads, **options)

    read_by(monkeypatch, take_with_trouble)
    daemon = Daemon(Settings(database_url=database_url, redis_url=redis_url, batch_size=100, depth=0))
    daemon.run()

    assert limits[:3] == [100, 50, 50]
