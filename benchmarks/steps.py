"""`python -m benchmarks.steps`: the cost of a step over a bare commit, and steps per core.

One job in one process runs steps one after another, alternating with bare commits of the same write on another
connection. Commits are flushed.
"""

from __future__ import annotations

import os
from contextlib import closing
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import text

from benchmarks import alone, figures, rates
from benchmarks.processes import cpu_seconds
from drain import job, psycopg_step_transaction, stage, step, step_transaction
from drain.config import Settings
from drain.tables import staged
from drain.workers.entry import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from drain.embedded import Services

# Full and short sizes.
SIZES = {"steps": (4000, 200)}
_TURN = 50
_UPDATE = "UPDATE step_accounts SET balance = balance + 1 WHERE id = 1"


def _nothing() -> int:
    return 1


def _by_psycopg(connection: psycopg.Connection[Any]) -> None:
    connection.execute(_UPDATE)


def _by_session(session: Session) -> None:
    session.execute(text(_UPDATE))


# By title: the step, and whether its bare commit makes the same write.
_STEPS: dict[str, tuple[Callable[[str], object], bool]] = {
    "`step`": (lambda name: step(name, _nothing), False),
    "`psycopg_step_transaction`, one UPDATE": (
        lambda name: psycopg_step_transaction(name, _by_psycopg),
        True,
    ),
    "`step_transaction`, one UPDATE": (lambda name: step_transaction(name, _by_session), True),
}


def section(started: Services, *, steps: int) -> str:
    """Measure and return the figures as Markdown."""
    rates.refill(started, 0)
    rows = [_measure(started, title, steps) for title in _STEPS]
    return (
        "## Steps\n\n"
        "One process runs steps one after another, alternating with bare commits of the same write (for `step`: one "
        "INSERT). Milliseconds; steps a second of this process, and per second of processor time of the process and "
        "its connections to PostgreSQL.\n\n"
        + figures.table(
            ["", "bare p50", "step p50", "step p99", "added", "steps/s", "steps per second of a core"], rows
        )
    )


def _measure(started: Services, title: str, steps: int) -> list[str]:
    act, writes = _STEPS[title]
    bare_seconds: list[float] = []
    step_seconds: list[float] = []
    processor: list[float] = []
    url = started.database_url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS step_accounts (id int PRIMARY KEY, balance bigint)")
        connection.execute("CREATE TABLE IF NOT EXISTS step_bare (id bigint GENERATED ALWAYS AS IDENTITY)")
        connection.execute("INSERT INTO step_accounts VALUES (1, 0) ON CONFLICT DO NOTHING")
        bare = _UPDATE if writes else "INSERT INTO step_bare DEFAULT VALUES"

        @job(name="bench.steps", max_attempts=1, timeout_seconds=3600)
        def run() -> None:
            # The first steps connect.
            for number in range(3):
                act(f"warm {number}")
            for first in range(0, steps, _TURN):
                _timed(bare_seconds, lambda _: connection.execute(bare), first)
                before = _processor_seconds(connection)
                _timed(step_seconds, lambda number: act(f"step {number}"), first)
                processor.append(_processor_seconds(connection) - before)

        with closing(Worker(Settings(database_url=url))) as worker:
            job_id = stage(connection, run)
            staged.move(connection, [job_id], last_delivery=job_id)
            if worker.execute(job_id) != "finished":
                raise RuntimeError("the job of the steps did not finish")
        connection.execute("TRUNCATE job_steps, step_bare")
    bare_p50, step_p50 = median(bare_seconds), median(step_seconds)
    p99 = quantiles(step_seconds, n=100)[98]
    return [
        title,
        *(f"{1000 * seconds:.2f}" for seconds in (bare_p50, step_p50, p99, step_p50 - bare_p50)),
        f"{len(step_seconds) / sum(step_seconds):,.0f}",
        f"{len(step_seconds) / sum(processor):,.0f}",
    ]


def _timed(taken: list[float], act: Callable[[int], object], first: int) -> None:
    for number in range(first, first + _TURN):
        began = perf_counter()
        act(number)
        taken.append(perf_counter() - began)


def _processor_seconds(connection: psycopg.Connection[Any]) -> float:
    """Processor time of this process and of the sessions of its jobs."""
    backends = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'drain job'")
    return sum(cpu_seconds(pid) for pid in (os.getpid(), *(pid for (pid,) in backends)))


if __name__ == "__main__":
    alone.run("steps", section, SIZES)
