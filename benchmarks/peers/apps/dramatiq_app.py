"""Dramatiq on Redis. It has no bulk enqueue: messages are enqueued one by one."""

# mypy: ignore-errors
from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import dramatiq
import psycopg
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers import work

if TYPE_CHECKING:
    from collections.abc import Callable

dramatiq.set_broker(RedisBroker(url=work.redis_url()))
_thread = threading.local()


@dramatiq.actor
def noop() -> None:
    work.done()


@dramatiq.actor
def cpu() -> None:
    work.spin()
    work.done()


@dramatiq.actor
def wait() -> None:
    time.sleep(work.WAIT_SECONDS)
    work.done()


@dramatiq.actor
def update(number: int) -> None:
    if not hasattr(_thread, "connection"):
        _thread.connection = psycopg.connect(work.database_url(), autocommit=True)
    _thread.connection.execute(work.UPDATE.format("%s"), (number % work.ACCOUNTS,))
    work.done()


@dramatiq.actor
def killed_before() -> None:
    work.update_and_die(work.BEFORE)


@dramatiq.actor
def killed_after() -> None:
    work.update_and_die(work.AFTER)


@dramatiq.actor
def started(number: int) -> None:
    work.started(number)


def prepare() -> None:
    """Do nothing: Dramatiq stores nothing in Postgres."""


def fill(name: str, jobs: int) -> None:
    actor = globals()[name]
    for number in range(jobs):
        actor.send(*([number] if name == "update" else []))


def producer() -> Callable[[int], float]:
    return work.committed_before(started.send)
