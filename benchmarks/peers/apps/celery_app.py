"""Celery on Redis. It has no bulk send: one producer sends messages one by one."""

# mypy: ignore-errors
from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

import psycopg
from celery import Celery

from benchmarks.peers import work

if TYPE_CHECKING:
    from collections.abc import Callable

app = Celery("bench", broker=work.redis_url().replace("unix://", "redis+socket://").partition("?")[0])
app.conf.update(
    task_ignore_result=True,
    worker_disable_rate_limits=True,
    # The optimizing guide: "if you have many short-duration tasks … this number should be large, for example 64".
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop() -> None:
    work.done()


@app.task(name="cpu")
def cpu() -> None:
    work.spin()
    work.done()


@app.task(name="wait")
def wait() -> None:
    time.sleep(work.WAIT_SECONDS)
    work.done()


@app.task(name="update")
def update(number: int) -> None:
    _connection().execute(work.UPDATE.format("%s"), (number % work.ACCOUNTS,))
    work.done()


@app.task(name="killed_before")
def killed_before() -> None:
    work.update_and_die(work.BEFORE)


@app.task(name="killed_after")
def killed_after() -> None:
    work.update_and_die(work.AFTER)


@app.task(name="started")
def started(number: int) -> None:
    work.started(number)


def prepare() -> None:
    """Do nothing: Celery stores nothing in Postgres."""


def fill(name: str, jobs: int) -> None:
    task = app.tasks[name]
    with app.producer_or_acquire() as kept:
        for number in range(jobs):
            task.apply_async([number] if name == "update" else [], producer=kept)


def producer() -> Callable[[int], float]:
    return work.committed_before(started.delay)


@cache
def _connection() -> psycopg.Connection:
    return psycopg.connect(work.database_url(), autocommit=True)
