"""Celery's canvas: chains, and chords, which need a result store."""

# mypy: ignore-errors
from __future__ import annotations

from celery import Celery, chain, chord

from benchmarks.peers import work

_URL = work.redis_url().replace("unix://", "redis+socket://").partition("?")[0]

app = Celery("bench", broker=_URL, backend=_URL)
app.conf.update(worker_disable_rate_limits=True, broker_connection_retry_on_startup=True)


@app.task(name="started")
def started(number: int) -> None:
    work.started(number)


@app.task(name="killed")
def killed(number: int) -> None:
    work.die_once(work.BEFORE)
    work.started(number)


def prepare() -> None:
    """Do nothing: Celery stores nothing in Postgres."""


def fill(name: str, jobs: int) -> None:
    if name == "chain":
        chain(*(started.si(number) for number in range(jobs + 1))).apply_async()
        return
    first = killed if name == "killed" else started
    chord([first.si(0), *(started.si(number) for number in range(1, jobs))])(started.si(jobs))
