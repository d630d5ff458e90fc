"""What others do in the same database and the same Redis stops nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from drain import stage, stage_many
from drain.config import Settings
from drain.database import postgres, schema
from drain.embedded import EmbeddedRedis, Services
from drain.enqueuer import due_rows
from drain.enqueuer.pacer import Pacer
from drain.enqueuer.redelivery import Redelivery
from drain.errors import UnavailableError
from drain.jobs import executors, registry, rows
from drain.tables import lanes, redeliveries
from drain.workers import job
from drain.workers.entry import Worker
from tests.helpers import (
    drain_command,
    environment,
    free_port,
    ids_in,
    impatient,
    leading,
    new_enqueuer,
    pushed_jobs,
    query,
    read_by,
    stage_jobs,
    wait_until,
)


@pytest.mark.usefixtures("processes")
def test_an_open_transaction_that_staged_does_not_delay_other_jobs(database_url: str, redis_url: str) -> None:
    env = environment(database_url, redis_url) | {"DRAIN_DEPTH": "0"}
    with leading(env), psycopg.connect(database_url) as neighbour:
        while not query(
            database_url,
            "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 2 AND mode = 'ShareLock' AND pid = %s",
            neighbour.info.backend_pid,
        ):
            # While the enqueuer sleeps it is told to be notified instead, and takes no share of the lock. It wakes up
            # for more than a few rows.
            neighbour.rollback()
            stage_jobs(database_url, 50)
            stage(neighbour, "m.open")
        for _ in range(3):
            (other,) = stage_jobs(database_url)
            wait_until(lambda other=other: other in pushed_jobs(redis_url))  # type: ignore[misc]


@pytest.mark.parametrize("is_slow", [False, True], ids=["searches are quick", "the last search was slow"])
def test_rows_that_become_due_at_once_mature_one_batch_at_a_time(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    monkeypatch.setattr(due_rows, "_MATURE_LIMIT", 10)
    if is_slow:
        monkeypatch.setattr(Pacer, "is_due", lambda _: False)
    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, staged_at, scheduled_at) "
        "SELECT 'm.f', now() - interval '2 minutes', now() - interval '1 minute' FROM generate_series(1, 30)",
    )
    with new_enqueuer(database_url, redis_url, batch_size=5) as enqueuer:
        assert enqueuer.run_once() == 5
        waiting = query(database_url, "SELECT count(*) FROM staged_jobs WHERE matured_at IS NULL")
        assert waiting == [(20,)]
        assert enqueuer.drain() == 25
    assert len(pushed_jobs(redis_url)) == 30


def test_rows_that_are_written_again_and_again_do_not_stop_the_drain(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 20)
    take = lanes.read_due

    def taken_late(*args: Any, **kwargs: Any) -> Any:
        """Between the transaction's first look and the taking, and once more before the moving."""
        query(database_url, "UPDATE staged_jobs SET tag = 'before' WHERE id = %s", ids[0])
        rows = take(*args, **kwargs)
        if not kwargs["skip_locked"]:
            query(database_url, "UPDATE staged_jobs SET tag = 'after' WHERE id = %s", ids[0])
        return rows

    read_by(monkeypatch, taken_late)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert enqueuer.drain() == 20
    assert pushed_jobs(redis_url) == ids


def test_jobs_that_workers_claim_meanwhile_do_not_stop_redelivery(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 3)
    redeliver = redeliveries.redeliver_unclaimed

    def redelivered_late(connection: postgres.Connection, *args: Any, **kwargs: Any) -> Any:
        connection.execute("SELECT 1")
        query(database_url, "UPDATE inflight_jobs SET lease_expires_at = 'tomorrow' WHERE id = %s", ids[0])
        return redeliver(connection, *args, **kwargs)

    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
        monkeypatch.setattr(redeliveries, "redeliver_unclaimed", redelivered_late)
        # The mark is not there yet: a Redis that has forgotten everything.
        assert Redelivery(enqueuer).recover() == 2


def test_a_repeated_init_does_not_wait_for_locks(database_url: str) -> None:
    with psycopg.connect(database_url) as neighbour:
        stage(neighbour, "m.f")
        assert schema.install(database_url) == schema.VERSION


@pytest.mark.usefixtures("processes")
def test_a_redis_that_answers_but_refuses_jobs_is_logged_on_one_line(database_url: str) -> None:
    with EmbeddedRedis(settings={"maxmemory": "1mb"}) as redis:
        stage_jobs(database_url, 5000)
        port = free_port()
        # How much an empty Redis holds differs between machines: more is pushed than any of them has room for.
        env = environment(database_url, redis.url) | {"DRAIN_DEPTH": "0"}
        with drain_command("run", "--metrics-port", str(port), env=env) as command:
            wait_until(lambda: command.events("down"))
            wait_until(lambda: _failures(port) >= 4, seconds=30)
            assert len(command.events("down")) == 1
            assert len(command.output.splitlines()) <= 3


def _failures(port: int) -> float:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counts = [line.split()[-1] for line in lines if line.startswith('drain_failures_total{store="redis"}')]
    return float(counts[0]) if counts else 0.0


def test_an_already_finished_id_is_buried_instead_of_running_forever(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    runs: list[int] = []
    job(name="m.f")(lambda *_: runs.append(1))
    worker = Worker(Settings(database_url=database_url))
    for outcome in ("finished", "dead"):
        assert stage_jobs(database_url) == [1]
        with new_enqueuer(database_url, redis_url) as enqueuer:
            enqueuer.drain()
        assert worker.execute(1) == outcome
        query(database_url, "TRUNCATE staged_jobs RESTART IDENTITY")
    worker.close()
    assert "already" in query(database_url, "SELECT explanation FROM dead_jobs")[0][0]


def test_a_transaction_that_the_server_ended_is_a_lost_connection(database_url: str) -> None:
    with postgres.connect(database_url, "ended") as connection:
        connection.execute("SET idle_in_transaction_session_timeout = '10ms'")
        connection.execute("BEGIN")
        wait_until(
            lambda: (
                not query(
                    database_url,
                    "SELECT FROM pg_stat_activity WHERE application_name = 'ended' AND datname = current_database()",
                )
            )
        )
        with pytest.raises(UnavailableError), postgres.reachable(database_url):
            connection.execute("SELECT 1")


@pytest.mark.usefixtures("processes")
def test_a_hung_leader_is_replaced(database_url: str, redis_url: str) -> None:
    # 15 s in earnest.
    soon = impatient({"drain.enqueuer.daemon._IDLE_SECONDS": 2})
    env = environment(database_url, redis_url)
    with leading(env | soon) as stalled, drain_command("run", "--metrics-port", "0", env=env):
        stalled.send_signal(signal.SIGSTOP)
        (job_id,) = stage_jobs(database_url)
        wait_until(lambda: pushed_jobs(redis_url) == [job_id], seconds=40)
        stalled.send_signal(signal.SIGCONT)
        (later,) = stage_jobs(database_url)
        wait_until(lambda: pushed_jobs(redis_url) == [job_id, later])


@pytest.fixture(params=["LATIN1", "WIN1252"])
def foreign_database_url(servers: Services, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database in another encoding than ours."""
    name = f"test_{request.param.lower()}"
    administration = servers.postgres.url_of("postgres")
    create = SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'")
    with psycopg.connect(administration, autocommit=True) as connection:
        connection.execute(create.format(Identifier(name), request.param))
        try:
            yield servers.postgres.url_of(name)
        finally:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def test_a_database_with_another_encoding_works_too(
    foreign_database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    given: list[str] = []
    job(name="m.f")(given.append)
    schema.install(foreign_database_url)
    with postgres.connect(foreign_database_url, "application") as connection:
        job_id = stage(connection, "m.f", ["Grüße"])
    with new_enqueuer(foreign_database_url, redis_url) as enqueuer:
        enqueuer.drain()
    assert pushed_jobs(redis_url) == [job_id]
    worker = Worker(Settings(database_url=foreign_database_url))
    assert worker.execute(job_id) == "finished"
    worker.close()
    assert given == ["Grüße"]


def test_a_user_trigger_that_refuses_one_row_stops_only_that_row(database_url: str, redis_url: str) -> None:
    query(
        database_url,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not this one'; END $$",
    )
    query(
        database_url,
        "CREATE TRIGGER refuse BEFORE INSERT ON inflight_jobs FOR EACH ROW "
        "WHEN (NEW.job_name = 'm.refused') EXECUTE FUNCTION refuse()",
    )
    before = stage_jobs(database_url, 3)
    (refused,) = stage_jobs(database_url, job="m.refused")
    after = stage_jobs(database_url, 3)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    assert pushed_jobs(redis_url) == before + after
    assert ids_in(database_url, "dead_jobs") == [refused]


def test_many_large_arguments_go_in_several_statements(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    insert = executors.insert
    monkeypatch.setattr(rows, "_CHARACTERS_PER_STATEMENT", 1000)

    def counted(*args: Any) -> list[int]:
        sent.append(1)
        ids: list[int] = insert(*args)
        return ids

    monkeypatch.setattr(executors, "insert", counted)
    with psycopg.connect(database_url) as connection:
        ids = stage_many(connection, "m.f", [("x" * 400, n) for n in range(9)])
        found = connection.execute("SELECT id, (job_args ->> 1)::int FROM staged_jobs ORDER BY id").fetchall()
    assert len(sent) == 3
    assert found == [(id_, n) for n, id_ in enumerate(ids)]


@pytest.mark.usefixtures("processes")
def test_the_embedded_servers_report_an_unusable_directory_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with drain_command(
        "dev", "--directory", str(tmp_path / "file" / "below"), env={"PATH": "/usr/bin:/bin"}
    ) as dev:
        assert dev.wait(60) != 0
        assert "Traceback" not in dev.output
