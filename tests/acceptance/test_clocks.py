"""A worker whose clock is wrong by an hour changes nothing: every time that counts is the database's."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from drain import stage, stage_many
from drain.database import schema
from drain.embedded.postgres_server import CARELESS, EmbeddedPostgres
from tests import jobs_for_tests as jobs, jobs_in_batches
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    disconnect,
    drain_command,
    effects,
    environment,
    ids_in,
    leading,
    query,
    wait_until,
)
from tests.worker_processes import Yard

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
AN_HOUR = 3600
SOON = timedelta(seconds=1)
HALF_AN_HOUR = timedelta(minutes=30)


@pytest.fixture(params=[AN_HOUR, -AN_HOUR], ids=["ahead", "behind"])
def offset(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def environment_with_clock(database_url: str, redis_url: str, offset: int) -> dict[str, str]:
    return environment(
        database_url,
        redis_url,
        DRAIN_JOBS=jobs.MODULE,
        PYTHONPATH=f"{ROOT / 'tests/another_clock'}:{ROOT}",
        CLOCK_OFFSET_SECONDS=str(offset),
    )


@contextmanager
def drain_work(database_url: str, redis_url: str, offset: int) -> Iterator[None]:
    with drain_command("work", env=environment_with_clock(database_url, redis_url, offset)):
        yield


@contextmanager
def rq_worker(database_url: str, redis_url: str, offset: int) -> Iterator[None]:
    program = [str(Path(sys.executable).with_name("rq")), "worker", "-u", redis_url, "default"]
    env = environment_with_clock(database_url, redis_url, offset)
    with subprocess.Popen(program, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
        try:
            yield
        finally:
            worker.kill()
            worker.wait(PATIENCE_SECONDS)


def now(database_url: str) -> datetime:
    ((time,),) = query(database_url, "SELECT clock_timestamp()")
    assert isinstance(time, datetime)
    return time


def row(database_url: str, columns: str, table: str, job_id: int) -> tuple[Any, ...]:
    (found,) = query(database_url, f"SELECT {columns} FROM {table} WHERE id = %s", job_id)
    return found


@pytest.mark.parametrize("worker", [drain_work, rq_worker])
def test_a_worker_whose_clock_is_an_hour_off_changes_nothing(
    database_url: str, redis_url: str, offset: int, worker: Any
) -> None:
    jobs.create_effects(database_url)
    began = now(database_url)

    def staged(job: Any, *args: Any, **options: Any) -> int:
        with psycopg.connect(database_url) as connection:
            return stage(connection, job, args, **options)

    told = staged(jobs.record_time, "it is")
    retried = staged(jobs.fail_times, "retried", 1)
    scheduled = staged(jobs.record, "scheduled", run_at=began + SOON)
    in_time = staged(jobs.record, "in time", expires_at=began + HALF_AN_HOUR)
    expired = staged(jobs.record, "expired", expires_at=began + HALF_AN_HOUR)
    waits = staged(jobs.fail_for_an_hour, "waits")
    later = staged(jobs.record, "later", run_at=began + HALF_AN_HOUR)
    with leading(environment(database_url, redis_url)):
        wait_until(lambda: ids_in(database_url, "staged_jobs") == [later])
        query(database_url, "UPDATE inflight_jobs SET expires_at = clock_timestamp() WHERE id = %s", expired)
        with worker(database_url, redis_url, offset):
            finished = sorted([told, retried, scheduled, in_time])
            wait_until(lambda: ids_in(database_url, "finished_jobs") == finished, seconds=PATIENCE_SECONDS)
            wait_until(lambda: row(database_url, "next_run_at", "inflight_jobs", waits) != (None,))
            wait_until(lambda: ids_in(database_url, "dead_jobs") == [expired])
    ended = now(database_url)

    assert ids_in(database_url, "staged_jobs") == [later]
    assert ids_in(database_url, "inflight_jobs") == [waits]
    assert row(database_url, "reason", "dead_jobs", expired) == ("expired",)
    left = sorted(effects(database_url))
    its_time = float(left[1].removeprefix("it is "))
    assert left == ["in time", left[1], "retried", "retried", "scheduled", "waits"]
    assert abs(its_time - offset - began.timestamp()) < AN_HOUR / 2

    for job_id in finished:
        times = row(database_url, "moved_at, claimed_at, finished_at", "finished_jobs", job_id)
        assert sorted([began, *times, ended]) == [began, *times, ended]
    (claimed_at,) = row(database_url, "claimed_at", "finished_jobs", scheduled)
    assert claimed_at >= began + SOON
    attempts, failed_at = row(database_url, "attempts, last_error ->> 'at'", "finished_jobs", retried)
    assert attempts == 2
    assert began < datetime.fromisoformat(failed_at) < ended
    (died_at,) = row(database_url, "died_at", "dead_jobs", expired)
    assert began < died_at < ended
    (next_run_at,) = row(database_url, "next_run_at", "inflight_jobs", waits)
    assert began + HALF_AN_HOUR <= next_run_at <= ended + 2 * HALF_AN_HOUR


def test_a_lease_holds_by_the_clock_of_the_database(database_url: str, redis_url: str, offset: int) -> None:
    jobs.create_effects(database_url)
    with psycopg.connect(database_url) as connection:
        job_id = stage(connection, jobs.wait_for_go, ("waits",))
    with leading(environment(database_url, redis_url)), drain_work(database_url, redis_url, offset):
        wait_until(lambda: effects(database_url) == ["waits"], seconds=PATIENCE_SECONDS)
        before = now(database_url)
        (lease_expires_at,) = row(database_url, "lease_expires_at", "inflight_jobs", job_id)
        assert before < lease_expires_at < before + HALF_AN_HOUR
        jobs.leave_effect(database_url, "go")
        wait_until(lambda: ids_in(database_url, "finished_jobs") == [job_id])

    assert row(database_url, "attempts, fencing_token", "finished_jobs", job_id) == (1, 1)


@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed")
def test_jobs_run_on_while_the_clock_of_the_database_jumps(
    processes: None, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.NamedTemporaryFile("w", buffering=1))
        Path(file.name).chmod(0o644)

        def jump(seconds: int) -> None:
            file.seek(0)
            file.write(f"{seconds:+08}s\n")

        jump(0)
        monkeypatch.setenv("LD_PRELOAD", str(FAKETIME))
        monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", file.name)
        monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
        monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        server = stack.enter_context(EmbeddedPostgres(settings=CARELESS))
        monkeypatch.delenv("LD_PRELOAD")
        schema.install(server.url)
        jobs.create_effects(server.url)
        yard = Yard(server.url, redis_url)
        stack.enter_context(leading(yard.env()))
        stack.enter_context(yard.working())

        both = jobs_in_batches.wait_for_seconds, jobs_in_batches.sleep_for_seconds
        waits = [job_id for job in both for job_id in yard.stage(job, AN_HOUR)]
        wait_until(lambda: query(server.url, "SELECT count(*) FROM job_waits") == [(2,)])
        for seconds in (AN_HOUR // 2, -2 * AN_HOUR):
            jump(seconds)
            assert abs(now(server.url) - datetime.now(UTC) - timedelta(seconds=seconds)) < timedelta(
                minutes=1
            )
            first = yard.stage(jobs_in_batches.fail_first, str(seconds))
            yard.wait_for("finished_jobs", [*first, *yard.stage(jobs_in_batches.note, "after", after=first)])
        assert query(server.url, "SELECT count(*) FROM job_waits") == [(2,)]
        jump(AN_HOUR)
        yard.wait_for("finished_jobs", waits)
        disconnect()


def test_processes_whose_clocks_are_two_hours_apart_run_every_job_once(
    database_url: str, redis_url: str
) -> None:
    jobs.create_effects(database_url)
    with (
        leading(environment_with_clock(database_url, redis_url, AN_HOUR)),
        ExitStack() as workers,
        psycopg.connect(database_url) as connection,
    ):
        for offset in (AN_HOUR, -AN_HOUR):
            workers.enter_context(drain_work(database_url, redis_url, offset))
        labels = [f"{number:03}" for number in range(100)]
        ids = stage_many(connection, jobs.record, [(label,) for label in labels])
        connection.commit()
        wait_until(lambda: ids_in(database_url, "finished_jobs") == ids, seconds=PATIENCE_SECONDS)

    assert sorted(effects(database_url)) == labels


def test_waits_end_by_the_clock_of_the_database(database_url: str, redis_url: str, offset: int) -> None:
    jobs.create_effects(database_url)
    env = environment_with_clock(database_url, redis_url, offset) | {"DRAIN_JOBS": jobs_in_batches.MODULE}
    with psycopg.connect(database_url) as connection:
        slept = stage(connection, jobs_in_batches.sleep_for_seconds, (1,))
        timed_out = stage(connection, jobs_in_batches.wait_for_seconds, (1,))
        heard = stage(connection, jobs_in_batches.await_event, ("a",))
    with leading(env), drain_command("work", env=env):
        wait_until(lambda: ids_in(database_url, "finished_jobs") == [slept, timed_out], PATIENCE_SECONDS)
        query(database_url, "SELECT drain_emit('a', '1')")
        wait_until(lambda: heard in ids_in(database_url, "finished_jobs"), PATIENCE_SECONDS)

    for job_id in (slept, timed_out):
        ((seconds,),) = query(database_url, "SELECT seconds FROM job_steps WHERE job_id = %s", job_id)
        assert 1 <= seconds < AN_HOUR / 2
    assert sorted(effects(database_url)) == ["a 1", "too late", "woke"]
