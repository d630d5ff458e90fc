"""Results in worker processes: each kind of job keeps its own, and none is lost when a process is killed."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from redis import Redis

import drain
from drain.config import Settings
from drain.embedded.addresses import free_port
from drain.errors import ConfigError
from drain.tables.fences import Fence
from drain.workers.entry import Worker
from drain.workers.execution.outcome import Finished
from drain.workers.handover.journal import Journal, Progress
from drain.workers.handover.recovery import recover
from tests import jobs_with_results as jobs
from tests.helpers import PATIENCE_SECONDS, ROOT, environment, ids_in, query, wait_until
from tests.worker_processes import Yard, children, kill_worker

JOBS = {"DRAIN_JOBS": jobs.MODULE}
# The server's sessions that wait for the lock of a test.
WAITING = """
SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'finished_jobs'::regclass
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def results(yard: Yard, ids: list[int]) -> list[Any]:
    with psycopg.connect(yard.database_url, autocommit=True) as connection:
        return [drain.result(connection, job_id) for job_id in ids]


@pytest.mark.parametrize("words", [(), ("--threads", "4")], ids=["one thread", "threads"])
def test_each_kind_of_job_keeps_its_own_result(yard: Yard, words: tuple[str, ...]) -> None:
    """Many at once: those that return are finished together, in one statement, and some of them keep nothing."""
    labels = [f"{number} \u2615" for number in range(30)]
    ids: dict[Any, list[int]] = {
        each: yard.stage(each, *labels) for each in (jobs.answer, jobs.discard, jobs.answer_in_loop)
    }
    ids |= {each: yard.stage(each, *labels[:3]) for each in jobs.ALL if each not in ids}
    (dead,) = yard.stage(jobs.answer_too_much, "x")
    yard.push()
    with yard.working("--burst", *words, **JOBS) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    for each, of_this in ids.items():
        assert yard.all_are("finished_jobs", of_this), str(
            [(yard.row(one)["place"], yard.row(one).get("last_error")) for one in of_this]
        )
        if each is not jobs.discard:
            wanted = [{"label": label} for label in labels[: len(of_this)]]
            assert results(yard, of_this) == wanted, each.job_name
    assert query(
        yard.database_url,
        "SELECT DISTINCT result IS NULL FROM finished_jobs WHERE id = ANY (%s)",
        ids[jobs.discard],
    ) == [(True,)]
    assert "70002 bytes of JSON, and 65536 at most are kept" in yard.row(dead)["explanation"]


def test_results_lost_with_a_killed_process_are_computed_again(yard: Yard) -> None:
    """Its successor does not have them, and lets these jobs run again."""
    labels = [str(number) for number in range(20)]
    ids = yard.pushed(jobs.note_and_answer, *labels)
    with psycopg.connect(yard.database_url) as person, yard.working("--prefetch", "20", **JOBS) as command:
        person.execute("LOCK TABLE finished_jobs IN ACCESS EXCLUSIVE MODE")
        wait_until(lambda: query(yard.database_url, WAITING) and len(yard.effects()) == 20, PATIENCE_SECONDS)
        (waiting,) = query(yard.database_url, WAITING)
        (first,) = children(command)
        kill_worker(command)
        query(yard.database_url, "SELECT pg_terminate_backend(%s, 10000)", *waiting)
        person.rollback()
        wait_until(lambda: len(ids_in(yard.database_url, "finished_jobs")) >= len(ids) - 1, PATIENCE_SECONDS)

        def are_finished() -> bool:
            # The last job may have been killed between its effect and its end. It then needs another delivery.
            yard.redeliver()
            return yard.all_are("finished_jobs", ids)

        wait_until(are_finished, PATIENCE_SECONDS)
        assert children(command) != [first]
    assert results(yard, ids) == [{"label": label} for label in labels]
    assert len(yard.effects()) > 20


def test_the_journal_hands_over_no_finish_without_its_result(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs.answer, "a")
    query(
        yard.database_url,
        "UPDATE inflight_jobs SET fencing_token = 1, claimed_at = now(), claimed_by = 'dead', attempts = 1, "
        "lease_expires_at = now() + interval '1 hour'",
    )
    ((delivery, salt),) = query(yard.database_url, "SELECT delivery, salt FROM inflight_jobs")
    journal = Journal()
    journal.commit(journal.add(Fence(job_id, 1, salt, "dead"), delivery))
    assert [entry.progress for entry in journal.entries()] == [Progress.COMMITTED]
    recover(journal, Settings(database_url=yard.database_url, redis_url=yard.redis_url), "was killed")
    assert yard.row(job_id)["lease_expires_at"] is None
    assert Finished("1") != Finished()


# -- waiting ----------------------------------------------------------------------------------------------------------

Wait = Callable[..., Awaitable[Any]]


async def with_psycopg(url: str, *given: Any, **more: Any) -> Any:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        return await drain.aresult(connection, *given, **more)


async def with_psycopg_in_a_transaction(url: str, *given: Any, **more: Any) -> Any:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        return await drain.aresult(connection, *given, **more)


async def with_asyncpg(url: str, *given: Any, **more: Any) -> Any:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return await drain.aresult(connection, *given, **more)
    finally:
        await connection.close()


async def with_session(url: str, *given: Any, **more: Any) -> Any:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        async with AsyncSession(engine) as session:
            return await drain.aresult(session, *given, **more)
    finally:
        await engine.dispose()


async def with_connection(url: str, *given: Any, **more: Any) -> Any:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.connect() as connection:
            return await drain.aresult(connection, *given, **more)
    finally:
        await engine.dispose()


WAITS = [with_psycopg, with_psycopg_in_a_transaction, with_asyncpg, with_session, with_connection]


@pytest.fixture
def told(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.setenv("DRAIN_REDIS_URL", yard.redis_url)
    return yard


def listeners(yard: Yard, job_id: int) -> int:
    with Redis.from_url(yard.redis_url) as redis:
        ((_, number),) = redis.pubsub_numsub(f"drain:ended:{job_id}")
        return int(number)


def in_thread(wait: Wait, *given: Any, **more: Any) -> tuple[threading.Thread, list[Any]]:
    """Wait in another thread; the list gets the result, or the error."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(asyncio.run(wait(*given, **more)))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, answers


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize(
    "job", [jobs.answer, jobs.answer_in_child, jobs.answer_in_group], ids=lambda each: each.job_name
)
def test_a_waiting_caller_is_notified_at_once(
    told: Yard, wait: Wait, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a word of the worker it would look again far too late.
    monkeypatch.setattr("drain.jobs.results._LOOK_SECONDS", PATIENCE_SECONDS)
    (job_id,) = told.stage(job, "a")
    thread, answers = in_thread(wait, told.database_url, job_id, timeout=PATIENCE_SECONDS)
    wait_until(lambda: listeners(told, job_id) == 1)
    told.push()
    with told.working("--burst", **JOBS) as command:
        thread.join(PATIENCE_SECONDS / 2)
        assert answers == [{"label": "a"}]
        assert command.wait(PATIENCE_SECONDS) == 0
    wait_until(lambda: listeners(told, job_id) == 0)


def test_a_waiting_caller_is_notified_of_a_death(told: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drain.jobs.results._LOOK_SECONDS", PATIENCE_SECONDS)
    (job_id,) = told.stage(jobs.answer_too_much, "a")
    thread, answers = in_thread(with_psycopg, told.database_url, job_id, timeout=PATIENCE_SECONDS)
    wait_until(lambda: listeners(told, job_id) == 1)
    told.push()
    with told.working("--burst", **JOBS):
        thread.join(PATIENCE_SECONDS / 2)
        (error,) = answers
    assert isinstance(error, drain.DeadJobError)
    assert "is too large" in str(error)
    assert "\n" not in str(error)


def test_a_stock_rq_worker_notifies_callers_too(told: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drain.jobs.results._LOOK_SECONDS", PATIENCE_SECONDS)
    (job_id,) = told.stage(jobs.answer, "a")
    thread, answers = in_thread(with_psycopg, told.database_url, job_id, timeout=PATIENCE_SECONDS)
    wait_until(lambda: listeners(told, job_id) == 1)
    told.push()
    words = [sys.executable, "-m", "rq.cli", "worker", "--burst", "--url", told.redis_url, "default"]
    env = environment(told.database_url, told.redis_url, PYTHONPATH=str(ROOT), **JOBS)
    subprocess.run(words, env=env, timeout=PATIENCE_SECONDS, check=True, capture_output=True)
    thread.join(PATIENCE_SECONDS / 2)
    assert answers == [{"label": "a"}]


@pytest.mark.parametrize("place", ["none", "away"])
def test_without_redis_only_the_table_is_polled(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.delenv("DRAIN_REDIS_URL", raising=False)
    url = None if place == "none" else f"redis://127.0.0.1:{free_port()}/0"
    (job_id,) = yard.pushed(jobs.answer, "a")
    thread, answers = in_thread(
        with_psycopg, yard.database_url, job_id, timeout=PATIENCE_SECONDS, redis_url=url
    )
    with yard.working("--burst", **JOBS) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    thread.join(PATIENCE_SECONDS)
    assert answers == [{"label": "a"}]


def test_waiting_for_an_existing_result_does_not_use_redis(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAIN_REDIS_URL", "nonsense")
    monkeypatch.setitem(os.environ, "DRAIN_JOBS", jobs.MODULE)
    (job_id,) = yard.pushed(jobs.answer, "a")
    with closing(Worker(Settings(database_url=yard.database_url))) as worker:
        assert worker.execute(job_id) == "finished"
    assert asyncio.run(with_psycopg(yard.database_url, job_id)) == {"label": "a"}


def test_a_timed_out_wait_reports_the_state_of_the_job(told: Yard) -> None:
    (job_id,) = told.stage(jobs.answer, "a")
    with pytest.raises(drain.NotFinishedError, match=r"^job \d+ has not finished after 0\.05 s: waiting$"):
        asyncio.run(with_psycopg(told.database_url, job_id, timeout=0.05))
    with pytest.raises(TimeoutError):
        asyncio.run(with_psycopg(told.database_url, job_id, timeout=0))
    with pytest.raises(drain.UnknownJobError):
        asyncio.run(with_psycopg(told.database_url, 99, timeout=0))
    with pytest.raises(ConfigError, match="DRAIN_REDIS_URL cannot be read"):
        asyncio.run(with_psycopg(told.database_url, job_id, timeout=1, redis_url="nonsense"))
