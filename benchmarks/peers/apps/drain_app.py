"""job-drain. Jobs are staged in bulk by `stage_many`, in one transaction."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import text

from benchmarks.peers import stepped, work
from drain import Flow, batch, stage_many, workers
from drain.config import Settings
from drain.database import schema
from drain.tables import staged
from drain.workers.entry import Worker

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


@workers.job(name="update_shared", commit="shared")
def update_shared(number: int) -> None:
    update.function(number)


@workers.job(name="update_shared_psycopg", commit="shared")
def update_shared_psycopg(number: int) -> None:
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


@workers.job(name="timed", timeout_seconds=3600)
def timed(steps: int) -> None:
    def by_psycopg(number: int) -> None:
        workers.psycopg_step_transaction(
            f"psycopg {number}", lambda connection: connection.execute(work.UPDATE.format(0)) and None
        )

    def by_sqlalchemy(number: int) -> None:
        workers.step_transaction(
            f"session {number}", lambda session: session.execute(_UPDATE, {"id": 0}) and None
        )

    stepped.time_each("job-drain, step", steps, lambda number: workers.step(f"step {number}", lambda: 1))
    stepped.time_each("job-drain, psycopg_step_transaction, one UPDATE", steps, by_psycopg)
    stepped.time_each("job-drain, step_transaction, one UPDATE", steps, by_sqlalchemy)


def cost(steps: int) -> None:
    with (
        closing(Worker(Settings(database_url=work.database_url()))) as worker,
        psycopg.connect(work.database_url(), autocommit=True) as connection,
    ):
        job_id = timed.stage(connection, steps)
        staged.move(connection, [job_id], last_delivery=job_id)
        worker.execute(job_id)


def prepare() -> None:
    schema.install(work.database_url())


@workers.job(name="killed")
def killed(number: int) -> None:
    work.die_once(work.BEFORE)
    work.started(number)


def fill(name: str, jobs: int) -> None:
    if name in ("chain", "fan_in", "killed"):
        _fill_flow(name, jobs)
        return
    arguments = ((number,) if name.startswith("update") else () for number in range(jobs))
    with psycopg.connect(work.database_url()) as connection:
        stage_many(connection, name, arguments)


def _fill_flow(name: str, jobs: int) -> None:
    with psycopg.connect(work.database_url()) as connection:
        if name == "chain":
            flow = Flow("chain")
            for number in range(jobs + 1):
                flow.add(str(number), started, [number], after=[str(number - 1)] if number else None)
            flow.stage(connection)
            return
        with batch(connection, on_success=(started, [jobs])) as members:
            members.stage(killed if name == "killed" else started, [0])
            members.stage_many(started, ((number,) for number in range(1, jobs)))


def producer() -> Callable[[int], float]:
    connection = psycopg.connect(work.database_url())

    def commit(number: int) -> float:
        connection.execute(work.ORDER.format("%s"), (number,))
        started.stage(connection, number)
        connection.commit()
        return time.monotonic()

    return commit
