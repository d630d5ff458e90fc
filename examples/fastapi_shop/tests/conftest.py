"""Each test has a connection whose transaction is rolled back: pages, jobs and the test itself work on it."""

import os
from collections.abc import AsyncIterator, Iterator

import pytest
from httpx import ASGITransport, AsyncClient
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from fastapi_shop.pages import app, session_of
from fastapi_shop.tables import Table


@pytest.fixture(scope="session")
def database_url() -> Iterator[str]:
    """URL of a database with job-drain's tables; without DRAIN_DATABASE_URL one is started."""
    if "DRAIN_DATABASE_URL" in os.environ:
        yield os.environ["DRAIN_DATABASE_URL"]
        return
    from drain.database import schema
    from drain.embedded import services

    with services(durable=False) as running:
        url = running.postgres.url_of("postgres")
        schema.install(url)
        yield url


@pytest.fixture
def anyio_backend() -> str:
    """Name of the event loop of asynchronous tests."""
    return "asyncio"


@pytest.fixture
async def drain_connection(anyio_backend: str, database_url: str) -> AsyncIterator[AsyncConnection]:
    """Connection of a test; the tables of the shop are made, and rolled back with all the rest."""
    engine = create_async_engine(make_url(database_url).set(drivername="postgresql+psycopg"))
    async with engine.connect() as connection:
        await connection.run_sync(Table.metadata.create_all)
        yield connection
        await connection.rollback()
    await engine.dispose()


@pytest.fixture
async def session(drain_connection: AsyncConnection) -> AsyncIterator[AsyncSession]:
    """Session of the test: what pages and jobs have written is read anew by each query."""
    async with AsyncSession(drain_connection, join_transaction_mode="create_savepoint") as session:
        yield session


@pytest.fixture
async def client(drain_connection: AsyncConnection) -> AsyncIterator[AsyncClient]:
    """Client of the application, each of whose requests commits to a savepoint only."""

    async def session_in_test() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(drain_connection, join_transaction_mode="create_savepoint") as session:
            yield session

    app.dependency_overrides[session_of] = session_in_test
    async with AsyncClient(transport=ASGITransport(app), base_url="http://shop") as client:
        yield client
    app.dependency_overrides.clear()
