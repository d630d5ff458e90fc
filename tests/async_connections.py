"""Asynchronous connections of each kind that jobs are staged on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

Opener = Callable[[str], AbstractAsyncContextManager[Any]]


def for_sqlalchemy(url: str, driver: str = "psycopg") -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(for_sqlalchemy(url))
    async with AsyncSession(engine) as one, one.begin():
        yield one
    await engine.dispose()


@asynccontextmanager
async def scoped_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(for_sqlalchemy(url))
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    async with scoped() as one, one.begin():
        yield scoped
    await engine.dispose()


@asynccontextmanager
async def core(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(for_sqlalchemy(url))
    async with engine.begin() as connection:
        yield connection
    await engine.dispose()


@asynccontextmanager
async def core_of_asyncpg(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url))
    async with engine.begin() as connection:
        yield connection
    await engine.dispose()


@asynccontextmanager
async def of_psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def cursor(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.cursor() as one:
        yield one


@asynccontextmanager
async def of_asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        yield connection
    await connection.close()


@asynccontextmanager
async def of_asyncpg_with_codecs(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    async with connection.transaction():
        yield connection
    await connection.close()


@asynccontextmanager
async def of_a_pool(url: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


OPENERS = [
    *(session, scoped_session, core, core_of_asyncpg, of_psycopg, cursor),
    *(of_asyncpg, of_asyncpg_with_codecs, of_a_pool),
]
