"""Connections that a process keeps from one async job to the next: nothing of one job is left for another."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import pytest
import sqlalchemy
from psycopg.pq import TransactionStatus

from drain.database.cursor import execute_and_commit_async
from drain.errors import UnavailableError
from drain.workers.context import async_connection_cache
from drain.workers.context.async_connection import JobAsyncConnection
from drain.workers.context.async_session import session_of
from tests.database.test_kept_connections import PID, sessions_of_jobs
from tests.helpers import query, wait_until

Way = Callable[[str], AbstractAsyncContextManager[Any]]
BOTH = pytest.mark.parametrize(
    "way", [session_of, async_connection_cache.bare], ids=["sqlalchemy", "psycopg"]
)


async def pid_of(handle: Any) -> int:
    if hasattr(handle, "scalar"):
        return int(await handle.scalar(PID))
    (pid,) = await (await handle.execute("SELECT pg_backend_pid()")).fetchone()
    return int(pid)


async def use(database_url: str, way: Way) -> int:
    async with way(database_url) as handle:
        pid = await pid_of(handle)
        await handle.rollback()
        return pid


@BOTH
def test_a_connection_is_kept_for_later_jobs_and_later_loops(database_url: str, way: Way) -> None:
    async def twice() -> list[int]:
        return [await use(database_url, way) for _ in range(2)]

    assert len({*asyncio.run(twice()), *asyncio.run(twice())}) == 1
    assert sessions_of_jobs(database_url) == 1


@BOTH
def test_a_running_loops_connection_is_not_used_by_another_loop(database_url: str, way: Way) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        pid = first.run(use(database_url, way))
        assert second.run(use(database_url, way)) != pid
        assert first.run(use(database_url, way)) == pid
        wait_until(lambda: sessions_of_jobs(database_url) == 1)


@BOTH
def test_only_one_of_many_open_connections_is_kept(database_url: str, way: Way) -> None:
    async def open_three() -> None:
        async with way(database_url), way(database_url), way(database_url):
            pass

    asyncio.run(open_three())
    wait_until(lambda: sessions_of_jobs(database_url) == 1)


@BOTH
def test_a_task_that_is_cancelled_leaves_no_connection(database_url: str, way: Way) -> None:
    async def wait(handle: Any) -> None:
        statement = "SELECT pg_sleep(600)"
        await handle.execute(sqlalchemy.text(statement) if hasattr(handle, "scalar") else statement)

    async def act() -> None:
        async with asyncio.timeout(0.2), way(database_url) as handle:
            await wait(handle)

    with pytest.raises(TimeoutError):
        asyncio.run(act())
    wait_until(lambda: sessions_of_jobs(database_url) == 0)
    key = (os.getpid(), database_url)
    assert not async_connection_cache._kept.get(key)
    assert not async_connection_cache._kept_for_sessions.get(key)


def test_a_session_used_after_its_block_does_not_join_another_jobs_transaction(
    database_url: str,
) -> None:
    """As in two `async def` jobs, of which one goes on while the other is in its transaction."""

    async def act() -> None:
        async with session_of(database_url) as first:
            its_own = await first.scalar(PID)
            await first.rollback()
        async with session_of(database_url) as second:
            assert await second.scalar(PID) == its_own
            assert await first.scalar(PID) != its_own
            await first.close()
            await second.rollback()

    asyncio.run(act())


def test_a_jobs_event_listeners_do_not_reach_the_next_job(database_url: str) -> None:
    heard: list[str] = []

    async def act() -> None:
        async with session_of(database_url) as session:
            connection = await session.connection()
            sqlalchemy.event.listen(
                connection.sync_connection, "before_cursor_execute", lambda *each: heard.append(each[2])
            )
            await session.scalar(PID)
            await session.rollback()
        async with session_of(database_url) as session:
            await session.scalar(sqlalchemy.text("SELECT 'the next job'"))

    asyncio.run(act())
    assert heard == [str(PID)]


def test_options_set_by_a_job_do_not_reach_the_next_one(database_url: str) -> None:
    async def act() -> dict[str, Any]:
        async with session_of(database_url) as session:
            await (await session.connection()).execution_options(logging_token="the first job")
        async with session_of(database_url) as session:
            below = (await session.connection()).sync_connection
            assert below is not None
            return dict(below.get_execution_options())

    assert asyncio.run(act()) == {}


def test_a_connection_that_a_job_closes_after_its_block_is_replaced(database_url: str) -> None:
    async def act() -> int:
        async with session_of(database_url) as session:
            connection = await session.connection()
        await connection.close()
        async with session_of(database_url) as session:
            return int(await session.scalar(sqlalchemy.text("SELECT 1")))

    assert asyncio.run(act()) == 1


@BOTH
def test_a_connection_whose_server_session_has_ended_is_replaced(database_url: str, way: Way) -> None:
    pid = asyncio.run(use(database_url, way))
    query(database_url, "SELECT pg_terminate_backend(%s, 10000)", pid)
    assert asyncio.run(use(database_url, way)) != pid


def test_after_a_cancellation_the_next_statement_is_in_a_transaction(database_url: str) -> None:
    async def act() -> None:
        async with async_connection_cache.bare(database_url) as connection:
            for moment in range(100):
                if moment % 2:
                    await connection.execute("SELECT")
                with suppress(TimeoutError):
                    async with asyncio.timeout(moment * 20e-6):
                        await connection.execute("SELECT pg_sleep(%s)", (moment * 10e-6,))
                await connection.rollback()
                await connection.execute("SELECT")
                assert connection.info.transaction_status == TransactionStatus.INTRANS
                await connection.rollback()

    asyncio.run(act())


def test_begin_and_commit_are_sent_with_the_first_and_last_statement(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    states: list[TransactionStatus] = []
    execute = JobAsyncConnection._exec_command

    def noted(self: JobAsyncConnection, command: bytes, *args: Any, **kwargs: Any) -> Any:
        sent.append(command)
        return execute(self, command, *args, **kwargs)

    async def act() -> None:
        async with async_connection_cache.bare(database_url) as connection:
            await connection.execute("SELECT %s::integer", (1,))
            states.append(connection.info.transaction_status)
            await execute_and_commit_async(connection, "SELECT %s::integer", (1,))
            states.append(connection.info.transaction_status)

    monkeypatch.setattr(JobAsyncConnection, "_exec_command", noted)
    asyncio.run(act())
    assert (sent, states) == ([], [TransactionStatus.INTRANS, TransactionStatus.IDLE])


@BOTH
def test_an_unreachable_server_is_reported_in_one_line(way: Way) -> None:
    with pytest.raises(UnavailableError, match=r"PostgreSQL at .* cannot be used"):
        asyncio.run(use("postgresql://drain:secret@127.0.0.1:1/none", way))
