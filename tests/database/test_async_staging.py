"""Staging on asynchronous connections: SQLAlchemy's, psycopg's and asyncpg's, in the transaction of each."""

from __future__ import annotations

import asyncio
import warnings
from datetime import UTC, datetime, timedelta

import asyncpg
import psycopg
import pytest

import drain
from drain.errors import ConnectableError, IdempotencyConflictError, StageError
from tests.async_connections import OPENERS, Opener, session
from tests.helpers import query


@drain.job(name="astage.greet", queue="mail", max_attempts=3)
def greet(name: str, *, loud: bool = False) -> None:
    """Greets."""


each_kind = pytest.mark.parametrize("opened", OPENERS, ids=lambda opener: opener.__name__)


@each_kind
def test_a_job_is_staged_with_all_its_options(database_url: str, opened: Opener) -> None:
    at = datetime(2030, 1, 2, 3, tzinfo=UTC)

    async def stage() -> int:
        async with opened(database_url) as connection:
            return await drain.astage(
                *(connection, greet, ["Ada: 100 %"], {"loud": True}),
                priority=-3,
                run_at=at,
                tag="there's",
                context={"trace": "ab$1"},
                unique_key="one",
                quiet=timedelta(seconds=5),
            )

    job_id = asyncio.run(stage())
    columns = "id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, max_attempts, context"
    (row,) = query(database_url, f"SELECT {columns} FROM staged_jobs")
    later = at + timedelta(seconds=5)
    context = {"trace": "ab$1"}
    assert row == (
        *(job_id, "astage.greet", ["Ada: 100 %"], {"loud": True}),
        *("mail", -3, later, "there's", 3, context),
    )


@each_kind
def test_many_jobs_are_staged_in_their_order(database_url: str, opened: Opener) -> None:
    async def stage() -> list[int]:
        async with opened(database_url) as connection:
            return await drain.astage_many(connection, greet, ((str(n),) for n in range(12_000)), priority=7)

    ids = asyncio.run(stage())
    rows = query(database_url, "SELECT id, (job_args ->> 0)::int, priority FROM staged_jobs ORDER BY id")
    assert rows == [(job_id, n, 7) for n, job_id in enumerate(ids)]
    assert len(ids) == 12_000


@each_kind
def test_a_transaction_that_rolls_back_takes_the_job_along(database_url: str, opened: Opener) -> None:
    async def stage() -> None:
        async with opened(database_url) as connection:
            await greet.astage(connection, "Ada")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(stage())
    assert query(database_url, "SELECT FROM staged_jobs") == []


@each_kind
def test_an_idempotency_key_stages_once(database_url: str, opened: Opener) -> None:
    async def stage(name: str) -> int:
        async with opened(database_url) as connection:
            return await greet.options(idempotency_key="order 42").astage(connection, name)

    assert asyncio.run(stage("Ada")) == asyncio.run(stage("Ada"))
    with pytest.raises(IdempotencyConflictError, match="order 42"):
        asyncio.run(stage("Bob"))
    assert len(query(database_url, "SELECT FROM staged_jobs")) == 1


@each_kind
def test_a_job_that_is_refused_leaves_the_transaction_as_it_was(database_url: str, opened: Opener) -> None:
    async def stage() -> None:
        async with opened(database_url) as connection:
            for args in (["Ada", "Bob"], [object()], []):
                with pytest.raises(StageError):
                    await drain.astage(connection, greet, args)
            await greet.astage(connection, "Ada")

    asyncio.run(stage())
    assert query(database_url, "SELECT job_args FROM staged_jobs") == [(["Ada"],)]


def test_asyncpg_outside_a_transaction_stages_with_a_warning(database_url: str) -> None:
    async def stage() -> None:
        connection = await asyncpg.connect(database_url)
        # pytest.warns would also raise the ResourceWarning of a connection that another test left open.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await drain.astage(connection, greet, ["Ada"])
        (warning,) = (each for each in caught if each.category is UserWarning)
        assert "no transaction is open" in str(warning.message)
        assert warning.filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with connection.transaction():
                await greet.astage(connection, "Bob")
        await connection.close()

    asyncio.run(stage())
    assert len(query(database_url, "SELECT FROM staged_jobs")) == 2


def test_the_wrong_kind_of_connection_is_refused_with_the_right_function(
    database_url: str,
) -> None:
    async def stage() -> None:
        with (
            psycopg.connect(database_url) as synchronous,
            pytest.raises(ConnectableError, match=r"use drain\.stage on it"),
        ):
            await drain.astage(synchronous, greet, ["Ada"])
        for opened in OPENERS:
            async with opened(database_url) as one:
                with pytest.raises(ConnectableError, match="cannot work on a"):
                    drain.stage(one, greet, ["Ada"])
        async with session(database_url) as one:
            with pytest.raises(ConnectableError, match=r"await drain\.astage"):
                drain.stage(one, greet, ["Ada"])
        with pytest.raises(ConnectableError, match="cannot work asynchronously on a str"):
            await drain.astage("postgresql://", greet, ["Ada"])

    asyncio.run(stage())
    assert query(database_url, "SELECT FROM staged_jobs") == []
