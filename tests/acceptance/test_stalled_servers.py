"""A server that accepts and never answers is given up within a bound."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager
from time import monotonic
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from redis import Redis

from drain import stage
from drain.__main__ import main
from drain.config import Settings, process_name
from drain.database import postgres
from drain.database.postgres import Connection
from drain.embedded import EmbeddedRedis
from drain.enqueuer import health
from drain.enqueuer.daemon import Daemon
from drain.errors import UnavailableError
from drain.tables import claims, finishes
from drain.tables.claims import Claim
from drain.wire import Consumer, blocking_pop as waiter_module
from drain.workers.entry import Worker
from drain.workers.execution.rq_books import RQBooks
from drain.workers.handover.journal import Journal
from drain.workers.lease import database
from drain.workers.lease.database import Database
from drain.workers.lease.heartbeat import Heartbeat
from drain.workers.options import WorkOptions
from drain.workers.process.async_loop import AsyncLoop
from drain.workers.process.claimer import Claimer
from drain.workers.process.fetcher import Fetcher
from drain.workers.process.inbox import Inbox
from drain.workers.process.job_threads import JobThreads
from drain.workers.process.shutdown import Shutdown
from drain.workers.process.stale_deliveries import OvertakenDeliveries
from tests import jobs_for_tests as jobs
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    effects,
    environment,
    ids_in,
    new_enqueuer,
    pushed,
    pushed_jobs,
    query,
    stage_jobs,
    wait_until,
)
from tests.proxy import Proxy, proxied, proxied_redis


@contextmanager
def enqueuer_that_survives_a_stall_of(proxy: Proxy, database_url: str, redis_url: str) -> Iterator[None]:
    """Run one, let the proxy stall until it is noticed, and expect the enqueuer back."""
    running = Daemon(Settings(database_url=database_url, redis_url=redis_url, namespace=NAMESPACE))
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        wait_until(lambda: running.answers().unready() is None)
        proxy.stalled.set()
        wait_until(lambda: running.answers().unready() is not None)
        proxy.stalled.clear()
        yield
    finally:
        running.stop()
        proxy.stalled.clear()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_an_enqueuer_recovers_from_a_stalled_postgres(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STALLED_SECONDS", 1.0)
    with (
        proxied(database_url) as (proxy, through),
        enqueuer_that_survives_a_stall_of(proxy, through, redis_url),
    ):
        stage_jobs(database_url)
        wait_until(lambda: not ids_in(database_url, "staged_jobs"))


def test_an_enqueuer_recovers_from_a_stalled_redis(database_url: str, redis_url: str) -> None:
    with (
        proxied_redis(redis_url) as (proxy, through),
        enqueuer_that_survives_a_stall_of(proxy, database_url, f"{through}?socket_timeout=1"),
    ):
        ids = stage_jobs(database_url)
        wait_until(lambda: pushed_jobs(redis_url) == ids)


def lose_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a worker waits half a second for an answer of PostgreSQL, and asks once."""
    monkeypatch.setattr(database, "_STALLED_SECONDS", 0.5)
    monkeypatch.setattr(Database.ask, "__defaults__", (0.0,))


def test_a_worker_gives_up_on_a_stalled_postgres(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxied(database_url) as (proxy, through):
        worker = Worker(Settings(database_url=through))
        assert worker.execute(1) == "refused"
        lose_patience(monkeypatch)
        proxy.stalled.set()
        with pytest.raises(UnavailableError):
            worker.execute(1)


def test_a_waiting_worker_gives_redis_40_seconds_to_answer(redis_url: str) -> None:
    with closing(Consumer(redis_url, NAMESPACE, ["default"])) as consumer:
        for _ in range(2):
            assert consumer.wait(0.01) is None
            assert waiter_module._socket(consumer._waiter._client).gettimeout() == 40  # type: ignore[arg-type]
        assert waiter_module.WAIT_SECONDS == 30


def test_connecting_to_wait_times_out_like_any_redis_command() -> None:
    """Until its connection is open nobody can end the wait, and a worker that is told to stop would be killed."""
    with EmbeddedRedis() as server:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = Consumer(
                f"{server.url}{'&' if '?' in server.url else '?'}socket_timeout=0.2", NAMESPACE, ["a"]
            )
            with closing(began) as consumer, ThreadPoolExecutor(1) as thread:
                waiting = thread.submit(consumer.wait)
                wait([waiting], PATIENCE_SECONDS)
                given_up = waiting.done()
                os.kill(server.pid, signal.SIGCONT)
                assert given_up
                with pytest.raises(UnavailableError):
                    waiting.result()
        finally:
            os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("queues", "waits"), [(["default"], b"BLMOVE"), (["mail", "default"], b"BLPOP")], ids=["one", "several"]
)
def test_a_worker_recovers_from_a_stalled_redis(
    database_url: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    queues: list[str],
    waits: bytes,
) -> None:
    monkeypatch.setattr(waiter_module, "WAIT_SECONDS", 1)
    monkeypatch.setattr(waiter_module, "_ANSWER_SECONDS", 0.5)
    caplog.set_level("INFO")

    def told() -> list[str]:
        return [record.event for record in caplog.records if record.name == "drain.workers.stores"]  # type: ignore[attr-defined]

    with proxied_redis(redis_url) as (proxy, through):
        proxy.stall_at = waits
        with fetching(database_url, through, queues) as inbox:
            wait_until(proxy.stalled.is_set)
            wait_until(lambda: told() == ["down"])
            proxy.stall_at = None
            proxy.stalled.clear()
            (job_id,) = stage_jobs(database_url)
            with new_enqueuer(database_url, redis_url) as enqueuer:
                enqueuer.drain()
            wait_until(lambda: list(inbox.claimed) == [job_id])
            wait_until(lambda: told() == ["down", "up"])
        assert pushed_jobs(redis_url) == [job_id]


@contextmanager
def fetching(
    database_url: str, redis_url: str, queues: list[str], prefetch: int | None = None
) -> Iterator[Inbox]:
    """A fetcher that fills an inbox which no thread empties; at the end it gives back what it has fetched."""
    options = WorkOptions(queues=queues, prefetch=prefetch)
    journal = Journal()
    shutdown = Shutdown(options.grace_seconds, journal)
    inbox = Inbox(options, journal, shutdown)
    database, heartbeat = Database(database_url), Heartbeat(database_url, inbox.attempts)
    with closing(Consumer(redis_url, NAMESPACE, queues)) as consumer:
        overtaken = OvertakenDeliveries(database, consumer, RQBooks())
        loop, threads = AsyncLoop(inbox, shutdown, 1), JobThreads(inbox, shutdown, 1)
        claimer = Claimer(inbox, consumer, database, heartbeat, loop, threads, overtaken)
        fetcher = Fetcher(inbox, shutdown, consumer, claimer, overtaken, database, burst=False)
        thread = threading.Thread(target=fetcher.run)
        thread.start()
        try:
            yield inbox
        finally:
            shutdown.stop()
            until = monotonic() + PATIENCE_SECONDS
            while thread.is_alive() and monotonic() < until:
                # Again and again, as in a worker: the thread may be about to wait.
                consumer.end_wait()
                thread.join(0.05)
            heartbeat.stop()
    assert not thread.is_alive()


def test_claimed_jobs_run_although_redis_fails_after_the_claim(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = stage_jobs(database_url)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    with Redis.from_url(redis_url) as client:
        client.rpush("rq:queue:default", f"{NAMESPACE}-999-1")
    failures = []

    def fail(_consumer: Consumer, refused: Any) -> Any:
        failures.append(refused)
        raise UnavailableError("Redis does not take commands")

    monkeypatch.setattr(Consumer, "sort_unclaimed", fail)
    with fetching(database_url, redis_url, ["default"], prefetch=2) as inbox:
        wait_until(lambda: failures)
        wait_until(lambda: inbox.waiting_count == 1)
        assert list(inbox.claimed) == [job_id]


def test_a_lost_answer_does_not_claim_a_running_job_again(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_many, asked = claims.claim_many, 0

    def lossy(connection: Connection, asked_for: Mapping[int, int], **options: Any) -> list[Claim]:
        nonlocal asked
        won = claim_many(connection, asked_for, **options)
        asked += 1
        if asked == 2:
            connection.close()
            raise psycopg.OperationalError("the answer is lost")
        return won

    (job_id,) = stage_jobs(database_url)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    # Its last worker died: such a job is claimed singly.
    query(
        database_url, "UPDATE inflight_jobs SET claimed_at = now() - interval '1 s', lease_expires_at = now()"
    )
    (delivery,) = pushed(redis_url)
    monkeypatch.setattr(claims, "claim_many", lossy)
    with (
        psycopg.connect(database_url, autocommit=True) as connection,
        fetching(database_url, redis_url, ["default"], prefetch=10) as inbox,
        Redis.from_url(redis_url) as client,
    ):
        wait_until(lambda: inbox.waiting)
        assert inbox.begin_next()
        claim = claims.claim(connection, job_id, worker=process_name(), limits={})
        assert claim is not None
        (other,) = stage_jobs(database_url)
        client.rpush("rq:queue:default", delivery)
        with new_enqueuer(database_url, redis_url) as enqueuer:
            enqueuer.drain()
        wait_until(lambda: list(inbox.claimed) == [other])
        assert asked >= 3
        assert finishes.finish(connection, claim)


def test_a_connection_cut_by_another_thread_fails_at_once(database_url: str) -> None:
    connection = postgres.connect(database_url, "test")
    with (
        connection,
        pytest.raises(psycopg.OperationalError),
        postgres.time_limit(connection, 0.2),
    ):
        connection.execute("SELECT pg_sleep(30)")


def test_a_worker_gives_up_on_a_postgres_that_stalls_during_a_finish(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxied(database_url) as (proxy, through):
        jobs.create_effects(database_url)
        monkeypatch.setenv("DRAIN_DATABASE_URL", database_url)
        with psycopg.connect(database_url) as connection:
            job_id = stage(connection, jobs.record, ("it ran",))
        with new_enqueuer(database_url, redis_url) as enqueuer:
            enqueuer.drain()
        proxy.stall_at = b"drain_finish"
        claim = claims.claim

        def claim_patiently(*args: Any, **options: Any) -> Claim | None:
            won = claim(*args, **options)
            lose_patience(monkeypatch)
            return won

        monkeypatch.setattr(claims, "claim", claim_patiently)
        with pytest.raises(UnavailableError):
            Worker(Settings(database_url=through)).execute(job_id)

        assert effects(database_url) == ["it ran"]
        assert ids_in(database_url, "inflight_jobs") == [job_id]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound is a fiftieth of what it is."""
    limit = postgres.time_limit

    def shortened(connection: Connection, seconds: float) -> AbstractContextManager[None]:
        return limit(connection, seconds / 50)

    monkeypatch.setattr(postgres, "time_limit", shortened)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("words", ["status", "list dead", "dead retry --all --yes", "init", "run --once"])
@pytest.mark.parametrize("stall_at", [b"pg_backend_pid", b"drain_schema"], ids=["at once", "later"])
def test_a_command_gives_up_on_a_stalled_postgres(
    database_url: str, redis_url: str, words: str, stall_at: bytes
) -> None:
    with proxied(database_url) as (proxy, through):
        proxy.stall_at = stall_at
        result = CliRunner().invoke(main, words.split(), env=environment(through, redis_url))

    # Threads that other tests have left behind may log beside it.
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert result.exit_code == 1
    assert line.startswith("Error: PostgreSQL at ")
