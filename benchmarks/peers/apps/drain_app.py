"""job-drain. Jobs are staged in bulk by `stage_many`, in one transaction."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import text

from benchmarks.peers import work
from drain import stage_many, workers
from drain.database import schema

if TYPE_CHECKING:
    from collections.abc import Callable

_UPDATE = text(work.UPDATE.format(":id"))


@workers.job(name="noop")
def noop() -> None:
    work.done()


@workers.job(name="cpu")
def cpu() -> None:
    work.spin()
    work.done()


@workers.job(name="wait")
def wait() -> None:
    time.sleep(work.WAIT_SECONDS)
    work.done()


@workers.job(name="wait_async")
async def wait_async() -> None:
    await asyncio.sleep(work.WAIT_SECONDS)
    work.done()


@workers.job(name="update")
def update(number: int) -> None:
    with workers.transaction() as session:
        session.execute(_UPDATE, {"id": number % work.ACCOUNTS})
    work.done()


@workers.job(name="update_psycopg")
def update_psycopg(number: int) -> None:
    with workers.psycopg_transaction() as connection:
        connection.execute(work.UPDATE.format("%s"), (number % work.ACCOUNTS,))
    work.done()


@workers.job(name="update_grouped", commit="grouped")
def update_grouped(number: int) -> None:
    update.function(number)


@workers.job(name="update_grouped_psycopg", commit="grouped")
def update_grouped_psycopg(number: int) -> None:
    update_psycopg.function(number)


@workers.job(name="killed_before")
def killed_before() -> None:
    with workers.psycopg_transaction() as connection:
        connection.execute(work.UPDATE.format("%s"), (0,))
        work.die_once(work.BEFORE)


@workers.job(name="killed_after")
def killed_after() -> None:
    with workers.psycopg_transaction() as connection:
        connection.execute(work.UPDATE.format("%s"), (0,))
    work.die_once(work.AFTER)


@workers.job(name="killed_before_grouped", commit="grouped")
def killed_before_grouped() -> None:
    killed_before.function()


@workers.job(name="killed_after_grouped", commit="grouped")
def killed_after_grouped() -> None:
    killed_after.function()


@workers.job(name="started")
def started(number: int) -> None:
    work.started(number)


def prepare() -> None:
    schema.install(work.database_url())


def fill(name: str, jobs: int) -> None:
    arguments = ((number,) if name.startswith("update") else () for number in range(jobs))
    with psycopg.connect(work.database_url()) as connection:
        stage_many(connection, name, arguments)


def producer() -> Callable[[int], float]:
    connection = psycopg.connect(work.database_url())

    def commit(number: int) -> float:
        connection.execute(work.ORDER.format("%s"), (number,))
        started.stage(connection, number)
        connection.commit()
        return time.monotonic()

    return commit
