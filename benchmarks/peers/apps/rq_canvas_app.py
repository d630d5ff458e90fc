"""RQ's `depends_on`."""

# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"
from __future__ import annotations

import redis
from rq import Queue

from benchmarks.peers import work


def started(number: int) -> None:
    work.started(number)


def killed(number: int) -> None:
    work.die_once(work.BEFORE)
    work.started(number)


def prepare() -> None:
    """Do nothing: RQ stores nothing in Postgres."""


def fill(name: str, jobs: int) -> None:
    queue = Queue("default", connection=redis.Redis.from_url(work.redis_url()))
    if name == "chain":
        last = None
        for number in range(jobs + 1):
            last = queue.enqueue(started, number, depends_on=last)
        return
    first = killed if name == "killed" else started
    data = [Queue.prepare_data(first, (0,)), *(Queue.prepare_data(started, (n,)) for n in range(1, jobs))]
    queue.enqueue(started, jobs, depends_on=queue.enqueue_many(data))
