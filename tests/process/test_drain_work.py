"""`drain work` as a process: when it ends, and when it does not."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from drain import stage
from drain.embedded import EmbeddedRedis
from drain.enqueuer.redelivery import Redelivery
from tests import jobs_for_tests as jobs
from tests.helpers import (
    DRAIN,
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    effects,
    environment,
    ids_in,
    new_enqueuer,
    wait_until,
)
from tests.marked import on_linux

pytestmark = pytest.mark.usefixtures("processes")

LIST = "rq:queue:default"
# Redis is not asked before the worker processes ask it.
WITHOUT_PING = "from drain.wire import Producer; Producer.ping = lambda _: None; "
# Main thread, fetcher, finisher, watchdog, RQ presence, leases, time limits, and RQ's thread that receives commands.
THREADS = 8


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as started:
        yield started


@pytest.fixture
def env(database_url: str, redis: EmbeddedRedis) -> dict[str, str]:
    jobs.create_effects(database_url)
    return environment(database_url, redis.url, DRAIN_JOBS=jobs.MODULE, PYTHONPATH=str(ROOT))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def stage_and_drain(database_url: str, redis_url: str, job: str) -> list[int]:
    with psycopg.connect(database_url) as connection:
        ids = [stage(connection, f"{jobs.MODULE}.{job}", ["first"])]
    with new_enqueuer(database_url, redis_url) as enqueuer:
        Redelivery(enqueuer).recover()
        enqueuer.drain()
    return ids


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_stopping_worker_ends_even_if_redis_disappears_during_its_job(
    database_url: str, redis: EmbeddedRedis, env: dict[str, str], *, comes_back: bool
) -> None:
    ids = stage_and_drain(database_url, redis.url, "wait_for_go")
    with drain_command("work", env=env) as command:
        wait_until(lambda: effects(database_url), PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        redis.kill()
        if comes_back:
            redis.start()
        jobs.leave_effect(database_url, "go")
        assert command.wait(PATIENCE_SECONDS) == 0
    assert ids_in(database_url, "finished_jobs") == ids


def test_a_stop_signal_during_a_redis_outage_does_not_harm_the_running_job(
    database_url: str, redis: EmbeddedRedis, env: dict[str, str]
) -> None:
    ids = stage_and_drain(database_url, redis.url, "wait_for_go")
    with drain_command("work", env=env) as command:
        wait_until(lambda: effects(database_url), PATIENCE_SECONDS)
        redis.kill()
        command.send_signal(signal.SIGTERM)
        jobs.leave_effect(database_url, "go")
        assert command.wait(PATIENCE_SECONDS) == 0
        assert not command.events("job_failed")
    assert ids_in(database_url, "finished_jobs") == ids


def test_a_redis_that_refuses_is_waited_for(
    database_url: str, redis: EmbeddedRedis, env: dict[str, str]
) -> None:
    with closing(Redis.from_url(redis.url)) as client, drain_command("work", "default", env=env) as command:
        client.set(LIST, "no list")
        wait_until(lambda: command.events("down"), PATIENCE_SECONDS)
        client.delete(LIST)
        ids = stage_and_drain(database_url, redis.url, "record")
        wait_until(lambda: ids_in(database_url, "finished_jobs") == ids, PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_SECONDS) == 0


@on_linux
def test_a_worker_that_waited_for_redis_leaves_no_thread_behind(
    database_url: str, redis: EmbeddedRedis, env: dict[str, str]
) -> None:
    ids = stage_and_drain(database_url, redis.url, "wait_for_go")
    with drain_command("work", env=env) as command:
        wait_until(lambda: effects(database_url), PATIENCE_SECONDS)
        (pid,) = command.children()
        wait_until(lambda: threads(pid) == THREADS, PATIENCE_SECONDS)
        redis.kill()
        jobs.leave_effect(database_url, "go")
        wait_until(lambda: command.events("down"), PATIENCE_SECONDS)
        redis.start()
        wait_until(lambda: command.events("up"), PATIENCE_SECONDS)
        wait_until(lambda: threads(pid) == THREADS, PATIENCE_SECONDS)
        assert command.children() == [pid]
        wait_until(lambda: ids_in(database_url, "finished_jobs") == ids, PATIENCE_SECONDS)


def test_a_redis_that_disappears_before_the_worker_is_created_is_waited_for(
    database_url: str, redis: EmbeddedRedis, env: dict[str, str]
) -> None:
    redis.kill()
    with drain_command("work", env=env, program=WITHOUT_PING + DRAIN) as command:
        wait_until(lambda: command.events("down"), PATIENCE_SECONDS)
        redis.start()
        wait_until(lambda: command.events("up"), PATIENCE_SECONDS)
        ids = stage_and_drain(database_url, redis.url, "record")
        wait_until(lambda: ids_in(database_url, "finished_jobs") == ids, PATIENCE_SECONDS)
        assert not [*command.events("worker_died"), *command.events("failed")]
        command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_SECONDS) == 0
