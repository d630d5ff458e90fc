"""Each test has a connection whose transaction is rolled back: pages, jobs and the test itself work on it."""

import os
from collections.abc import AsyncIterator, Iterator

import pytest
from fastapi_shop.pages import app
from fastapi_shop.tables import Table, sessions_on
from httpx import ASGITransport, AsyncClient
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine


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
async def client(drain_connection: AsyncConnection) -> AsyncIterator[AsyncClient]:
    """Client of the application; what a request commits is a savepoint of the test's transaction."""
    app.state.sessions = sessions_on(drain_connection, join_transaction_mode="create_savepoint")
    async with AsyncClient(transport=ASGITransport(app), base_url="http://shop") as client:
        yield client
