"""PgQueuer on asyncpg, as it recommends. Jobs are inserted by the thousand, by `enqueue` with lists."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.peers import work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pgqueuer.models import Job

_TOGETHER = 1000


@asynccontextmanager
async def main() -> AsyncIterator[PgQueuer]:
    """Build the queue for `pgq run`."""
    connection = await asyncpg.connect(work.database_url())
    accounts = await asyncpg.create_pool(work.database_url(), min_size=0, max_size=10)
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("noop")
    async def noop(_: Job) -> None:
        work.done()

    @queuer.entrypoint("cpu")
    async def cpu(_: Job) -> None:
        work.spin()
        work.done()

    @queuer.entrypoint("wait")
    async def wait(_: Job) -> None:
        await asyncio.sleep(work.WAIT_SECONDS)
        work.done()

    @queuer.entrypoint("update")
    async def update(job: Job) -> None:
        await accounts.execute(work.UPDATE.format("$1"), int(job.payload) % work.ACCOUNTS)
        work.done()

    for moment in (work.BEFORE, work.AFTER):
        queuer.entrypoint(f"killed_{moment}")(_killed(accounts, moment))

    @queuer.entrypoint("started")
    async def started(job: Job) -> None:
        work.started(int(job.payload))

    yield queuer
    await accounts.close()
    await connection.close()


def _killed(accounts: asyncpg.Pool, moment: str) -> Callable[[Job], Awaitable[None]]:
    async def update_and_die(_: Job) -> None:
        async with accounts.acquire() as connection, connection.transaction():
            await connection.execute(work.UPDATE.format("$1"), 0)
            if moment == work.BEFORE:
                work.die_once(moment)
        if moment == work.AFTER:
            work.die_once(moment)

    return update_and_die


def prepare() -> None:
    async def install(queries: Queries) -> None:
        await queries.install()
        # `pgq autovac`, the first item on its checklist.
        await queries.optimize_autovacuum()

    asyncio.run(_with_queries(install))


def fill(name: str, jobs: int) -> None:
    async def enqueue(queries: Queries) -> None:
        for first in range(0, jobs, _TOGETHER):
            numbers = range(first, min(first + _TOGETHER, jobs))
            payloads = [str(number).encode() if name == "update" else None for number in numbers]
            await queries.enqueue([name] * len(payloads), payloads, [0] * len(payloads))

    asyncio.run(_with_queries(enqueue))


def producer() -> Callable[[int], float]:
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(work.database_url()))
    queries = Queries(AsyncpgDriver(connection))

    async def commit(number: int) -> float:
        async with connection.transaction():
            await connection.execute(work.ORDER.format("$1"), number)
            await queries.enqueue("started", str(number).encode())
        return time.monotonic()

    return lambda number: loop.run_until_complete(commit(number))


async def _with_queries(use: Callable[[Queries], object]) -> None:
    connection = await asyncpg.connect(work.database_url())
    await use(Queries(AsyncpgDriver(connection)))
    await connection.close()
