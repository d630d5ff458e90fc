"""RQ. `enqueue_many` pushes jobs by the thousand; they return nothing, so that no result is kept.

Workers are given this module as their settings, to import it before they fork, as RQ's performance notes advise.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"
from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

import psycopg
import redis
from rq import Queue

from benchmarks.peers import work

if TYPE_CHECKING:
    from collections.abc import Callable

_TOGETHER = 1000


def noop() -> None:
    work.done()


def cpu() -> None:
    work.spin()
    work.done()


def wait() -> None:
    time.sleep(work.WAIT_SECONDS)
    work.done()


def update(number: int) -> None:
    _connection().execute(work.UPDATE.format("%s"), (number % work.ACCOUNTS,))
    work.done()


def killed_before() -> None:
    work.update_and_die(work.BEFORE)


def killed_after() -> None:
    work.update_and_die(work.AFTER)


def started(number: int) -> None:
    work.started(number)


def prepare() -> None:
    """Do nothing: RQ stores nothing in Postgres."""


def fill(name: str, jobs: int) -> None:
    queue = _queue()
    for first in range(0, jobs, _TOGETHER):
        numbers = range(first, min(first + _TOGETHER, jobs))
        arguments = [(number,) if name == "update" else () for number in numbers]
        queue.enqueue_many([Queue.prepare_data(f"{__name__}.{name}", each) for each in arguments])


def producer() -> Callable[[int], float]:
    queue = _queue()
    return work.committed_before(lambda number: queue.enqueue(f"{__name__}.started", number))


def _queue() -> Queue:
    return Queue("default", connection=redis.Redis.from_url(work.redis_url()))


@cache
def _connection() -> psycopg.Connection:
    return psycopg.connect(work.database_url(), autocommit=True)
