"""`async def` jobs whose transaction is an async one: cancelled tasks, blocks that are thrown away, many at once.

The tests of test_job_transactions.py run for async blocks too, with an event loop of their own.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, closing, suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession

import drain
from drain import extras, failpoints
from drain.config import Settings
from drain.failpoints import FailurePoint
from drain.jobs import registry
from drain.workers import LeaseLostError, current_job
from drain.workers.context import async_connection_cache
from drain.workers.entry import Worker
from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, end, query, wait_until
from tests.inprocess_worker import FOREVER_SECONDS, Workshop, note_how_finishes_commit
from tests.poolers import SmallPooler
from tests.process.test_job_transactions import QUICK, Effect, one_event
from tests.worker_processes import Yard

AsyncBlock = Callable[[], AbstractAsyncContextManager[Any]]
Handle = AsyncSession | psycopg.AsyncConnection[Any]


@pytest.fixture(
    params=[drain.async_transaction, drain.async_psycopg_transaction], ids=["sqlalchemy", "psycopg"]
)
def block(request: pytest.FixtureRequest) -> AsyncBlock:
    """Each of both ways to have an async transaction."""
    way: AsyncBlock = request.param
    return way


async def execute(handle: Handle, statement: str) -> Any:
    if isinstance(handle, AsyncSession):
        return await handle.execute(sqlalchemy.text(statement))
    return await handle.execute(statement.encode())


async def leave(handle: Handle, label: str) -> None:
    await execute(handle, f"INSERT INTO effects (label) VALUES ('{label}')")


def test_the_jobs_writes_and_its_finish_are_one_commit(shop: Workshop, block: AsyncBlock) -> None:
    seen: list[tuple[list[str], str, bool]] = []

    def look() -> None:
        seen.append((shop.effects(), shop.whereabouts(job_id), current_job().finished))

    async def act() -> None:
        async with block() as handle:
            await leave(handle, "written")
            look()
        look()

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert seen == [([], "inflight_jobs", False), (["written"], "finished_jobs", True)]


def test_unflushed_session_objects_are_written_and_stay_readable(shop: Workshop) -> None:
    query(shop.database_url, "ALTER TABLE effects ADD PRIMARY KEY (id)")
    read: list[tuple[int, str]] = []

    async def act() -> None:
        async with drain.async_transaction() as session:
            effect = Effect(label="an object")
            session.add(effect)
        read.append((effect.id, effect.label))

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["an object"]
    assert read == [(1, "an object")]


def test_a_savepoint_is_rolled_back_on_its_own(shop: Workshop, block: AsyncBlock) -> None:
    async def act() -> None:
        async with block() as handle:
            is_session = isinstance(handle, AsyncSession)
            await leave(handle, "before")
            with suppress(ValueError):
                async with handle.begin_nested() if is_session else handle.transaction():
                    await leave(handle, "rolled back")
                    raise ValueError
            async with handle.begin_nested() if is_session else handle.transaction():
                await leave(handle, "nested")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["before", "nested"]


# --- what a block is not for


async def commit(session: AsyncSession) -> None:
    await session.commit()


async def begin(session: AsyncSession) -> None:
    async with session.begin():
        await leave(session, "committed early")


async def begin_after_a_rollback(session: AsyncSession) -> None:
    await session.rollback()
    await begin(session)


async def commit_the_connection(session: AsyncSession) -> None:
    await (await session.connection()).commit()


async def nest(_: AsyncSession) -> None:
    async with drain.async_transaction():
        pass


async def nest_a_sync_one(_: AsyncSession) -> None:
    with drain.transaction():
        pass


async def commit_by_psycopg(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.commit()


async def leave_psycopgs_block(connection: psycopg.AsyncConnection[Any]) -> None:
    async with connection:
        await leave(connection, "committed early")


async def let_each_commit_by_itself(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.rollback()
    await connection.set_autocommit(True)


async def commit_in_two_phases(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.rollback()
    await connection.tpc_begin("early")


async def leave_a_pipeline_open(connection: psycopg.AsyncConnection[Any]) -> None:
    left_open.append(connection.pipeline())
    await left_open[-1].__aenter__()


async def leave_a_savepoint_open(connection: psycopg.AsyncConnection[Any]) -> None:
    left_open.append(connection.transaction())
    await left_open[-1].__aenter__()


left_open: list[AbstractAsyncContextManager[Any]] = []


@pytest.mark.parametrize(
    ("block", "misuse"),
    [
        *(
            (drain.async_transaction, misuse)
            for misuse in (
                commit,
                begin,
                begin_after_a_rollback,
                commit_the_connection,
                nest,
                nest_a_sync_one,
            )
        ),
        *(
            (drain.async_psycopg_transaction, misuse)
            for misuse in (
                *(commit_by_psycopg, leave_psycopgs_block, let_each_commit_by_itself, commit_in_two_phases),
                *(leave_a_pipeline_open, leave_a_savepoint_open),
            )
        ),
    ],
)
def test_committing_before_the_finish_is_refused_with_nothing_written(
    shop: Workshop, block: AsyncBlock, misuse: Callable[[Any], Awaitable[None]]
) -> None:
    async def act() -> None:
        async with block() as handle:
            await leave(handle, "written early")
            await misuse(handle)

    async def write_more() -> None:
        async with block() as handle:
            await leave(handle, "the next job")

    job_id = shop.delivered(act, max_attempts=1)
    assert shop.work(job_id) == "dead"
    assert shop.row(job_id)["last_error"]["type"] == "drain.workers.errors.TransactionError"
    assert shop.effects() == []
    assert shop.work(shop.delivered(write_more, name="tests.next")) == "finished"
    assert shop.effects() == ["the next job"]


def test_without_greenlet_an_async_session_says_what_to_install(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", None)

    async def act() -> None:
        async with drain.async_transaction():
            pass

    job_id = shop.delivered(act, max_attempts=1)
    assert shop.work(job_id) == "dead"
    assert extras.install("async") in shop.row(job_id)["explanation"]


# --- cancelled tasks


async def sleep_in_python(_: Handle) -> None:
    await asyncio.sleep(FOREVER_SECONDS)


async def sleep_in_the_database(handle: Handle) -> None:
    await execute(handle, f"SELECT pg_sleep({FOREVER_SECONDS})")


@pytest.mark.parametrize("writes_first", [True, False])
@pytest.mark.parametrize("wait", [sleep_in_python, sleep_in_the_database])
def test_a_block_that_takes_too_long_is_rolled_back_on_the_server_too(
    shop: Workshop, block: AsyncBlock, wait: Callable[[Handle], Awaitable[None]], writes_first: bool
) -> None:
    async def act() -> None:
        async with block() as handle:
            if writes_first:
                await leave(handle, "late")
            if current_job().attempt == 1:
                await wait(handle)

    job_id = shop.delivered(act, timeout_seconds=1)
    assert shop.work(job_id) == "retrying"
    assert shop.row(job_id)["last_error"]["type"] == "drain.workers.errors.JobTimeoutError"
    assert shop.effects() == []
    wait_until(lambda: not shop.backends("drain job", state="active"))
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["late"] * writes_first


@pytest.mark.parametrize("writes_first", [True, False])
def test_a_job_may_continue_after_cancelling_a_statement(
    shop: Workshop, block: AsyncBlock, writes_first: bool
) -> None:
    """The next statement begins a transaction again, which commits with the finish, and not by itself."""

    async def act() -> None:
        async with block() as handle:
            if writes_first:
                await leave(handle, "rolled back")
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await sleep_in_the_database(handle)
            await handle.rollback()
            await leave(handle, "written")
            if current_job().attempt == 1:
                raise ValueError("again")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert shop.effects() == []
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["written"]


def test_a_lost_lease_interrupts_a_running_statement_and_rolls_the_block_back(
    shop: Workshop, block: AsyncBlock
) -> None:
    async def act() -> None:
        async with block() as handle:
            await leave(handle, "late")
            await asyncio.to_thread(shop.take_over, job_id)
            await sleep_in_the_database(handle)

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "stale"
    assert shop.effects() == []
    assert shop.stale_finishes() == [(job_id, 1, "nothing")]
    wait_until(lambda: not shop.backends("drain job", state="active"))


@pytest.mark.parametrize("catches", [False, True])
def test_a_block_whose_lease_was_taken_over_is_rolled_back(
    shop: Workshop, block: AsyncBlock, caplog: pytest.LogCaptureFixture, catches: bool
) -> None:
    async def act() -> None:
        try:
            async with block() as handle:
                await leave(handle, "late")
                claims.append(shop.take_over(job_id))
        except LeaseLostError:
            if not catches:
                raise

    claims: list[Any] = []
    job_id = shop.delivered(act)
    assert shop.work(job_id) == "stale"
    assert shop.effects() == []
    assert shop.stale_finishes() == [(job_id, 1, "finished" if catches else "nothing")]
    assert one_event(caplog, "stale_finish")
    assert shop.finish(claims[0])


def test_a_task_cancelled_during_its_commit_counts_once(shop: Workshop, block: AsyncBlock) -> None:
    """Whether the commit was quicker than the cancel is for the tables to say."""

    async def act() -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel(point: FailurePoint) -> None:
            if point is FailurePoint.WRITTEN:
                task.cancel()

        if current_job().attempt == 1:
            failpoints.set_hook(cancel)
        try:
            async with block() as handle:
                await leave(handle, f"attempt {current_job().attempt}")
        finally:
            failpoints.set_hook(None)

    job_id = shop.delivered(act)
    words = shop.work_to_the_end(job_id)
    assert words[-1] == "finished"
    assert shop.effects() == [f"attempt {len(words)}"]
    assert shop.row(job_id)["attempts"] == len(words)


# --- blocks that never end


def test_an_abandoned_transaction_fails_the_job(shop: Workshop, block: AsyncBlock) -> None:
    async def act() -> None:
        if current_job().attempt == 1:
            thrown_away = block()
            await leave(await thrown_away.__aenter__(), "lost")
            return
        async with block() as handle:
            await leave(handle, "kept")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert "still open" in shop.row(job_id)["last_error"]["message"]
    assert shop.effects() == []
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["kept"]


def test_a_transaction_that_is_left_open_fails_the_job(shop: Workshop, block: AsyncBlock) -> None:
    opened: list[Any] = []

    async def act() -> None:
        opened.append(block())
        await leave(await opened[-1].__aenter__(), "open")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert "still open" in shop.row(job_id)["last_error"]["message"]
    opened.clear()
    assert shop.effects() == []


# --- through a pooler


def test_no_session_state_remains_behind_a_pooler(
    database_url: str, block: AsyncBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    jobs.create_effects(database_url)

    async def act() -> None:
        async with block() as handle:
            for number in range(8):
                await leave(handle, str(number))

    with (
        SmallPooler(database_url, "transaction", size=2) as pooler,
        closing(Worker(Settings(database_url=pooler.url))) as worker,
    ):
        shop = Workshop(database_url, worker)
        for _ in range(3):
            assert shop.work(shop.delivered(act)) == "finished"
        async_connection_cache.close_all()
    assert shop.effects() == [str(number) for number in range(8)] * 3


# --- many at once


@pytest.mark.parametrize(
    "job",
    [jobs.meet_in_transaction, jobs.meet_in_psycopg_transaction],
    ids=["sqlalchemy", "psycopg"],
)
def test_many_concurrent_transactions_leave_the_process_one_connection(yard: Yard, job: Any) -> None:
    ids = yard.pushed(job, *[7] * 14)
    with yard.working("--concurrency", "7") as command:
        yard.wait_for("finished_jobs", ids)
        wait_until(lambda: len(sessions_of_jobs(yard)) == 1)
        more = yard.pushed(job, *[1] * 3)
        yard.wait_for("finished_jobs", more)
        assert end(command) == 0
    assert yard.effects() == ["met"] * 17


def sessions_of_jobs(yard: Yard) -> list[tuple[Any, ...]]:
    return query(
        yard.database_url,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'drain job'",
    )


def test_commits_of_async_jobs_may_be_grouped(yard: Yard) -> None:
    note_how_finishes_commit(yard.database_url)
    ids = yard.pushed(jobs.commit_grouped_in_the_loop, *["written"] * 20)
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)
    assert Counter(yard.effects()) == {"written": 20, "synchronous_commit off": 20}
