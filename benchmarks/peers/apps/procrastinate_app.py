"""Procrastinate on psycopg's pool. Jobs are inserted by the thousand, by `batch_defer`."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
from procrastinate import App, PsycopgConnector
from psycopg_pool import AsyncConnectionPool

from benchmarks.peers import stepped, work

if TYPE_CHECKING:
    from collections.abc import Callable

_TOGETHER = 1000
_FIND = "SELECT result FROM own_steps WHERE job = 1 AND name = %s"
_RECORD = "INSERT INTO own_steps VALUES (1, %s, '1')"

app = App(connector=PsycopgConnector(conninfo=work.database_url(), min_size=1, max_size=20))
_pools: list[AsyncConnectionPool] = []


@app.task(name="noop")
async def noop() -> None:
    work.done()


@app.task(name="cpu")
async def cpu() -> None:
    work.spin()
    work.done()


@app.task(name="wait")
async def wait() -> None:
    await asyncio.sleep(work.WAIT_SECONDS)
    work.done()


@app.task(name="update")
async def update(number: int) -> None:
    async with (await _accounts()).connection() as connection:
        await connection.execute(work.UPDATE.format("%s"), (number % work.ACCOUNTS,))
    work.done()


@app.task(name="killed_before")
async def killed_before() -> None:
    await _update_and_die(work.BEFORE)


@app.task(name="killed_after")
async def killed_after() -> None:
    await _update_and_die(work.AFTER)


@app.task(name="started")
async def started(number: int) -> None:
    work.started(number)


@app.task(name="timed")
def timed(steps: int) -> None:
    """Time steps as users write them with their own table, because Procrastinate has none."""
    with psycopg.connect(work.database_url()) as connection:
        connection.execute(
            "CREATE TABLE own_steps (job integer, name text, result json, PRIMARY KEY (job, name))"
        )
        connection.commit()

        def step(name: str, statement: str) -> None:
            if not connection.execute(_FIND, (name,)).fetchone():
                connection.execute(statement)
                connection.execute(_RECORD, (name,))
            connection.commit()

        stepped.time_each("Procrastinate, own table", steps, lambda number: step(f"one {number}", "SELECT 1"))
        update = work.UPDATE.format(0)
        title = "Procrastinate, own table, one UPDATE"
        stepped.time_each(title, steps, lambda number: step(f"two {number}", update))


def cost(steps: int) -> None:
    with app.open():
        timed.defer(steps=steps)
    app.run_worker(wait=False, install_signal_handlers=False)


def prepare() -> None:
    with app.open():
        app.schema_manager.apply_schema()


def fill(name: str, jobs: int) -> None:
    with app.open():
        for first in range(0, jobs, _TOGETHER):
            numbers = range(first, min(first + _TOGETHER, jobs))
            app.tasks[name].batch_defer(*({"number": n} if name == "update" else {} for n in numbers))


def producer() -> Callable[[int], float]:
    # `defer` uses its own connection, so it commits after the application.
    app.open()
    return work.committed_before(lambda number: started.defer(number=number))


async def _update_and_die(moment: str) -> None:
    async with (await _accounts()).connection() as connection, connection.transaction():
        await connection.execute(work.UPDATE.format("%s"), (0,))
        if moment == work.BEFORE:
            work.die_once(moment)
    if moment == work.AFTER:
        work.die_once(moment)


async def _accounts() -> AsyncConnectionPool:
    if not _pools:
        pool = AsyncConnectionPool(
            work.database_url(), min_size=1, max_size=10, open=False, kwargs={"autocommit": True}
        )
        _pools.append(pool)
        await pool.open()
    return _pools[0]
