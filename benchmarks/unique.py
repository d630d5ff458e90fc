"""Unique keys: their cost to staging, and whether two jobs of one key ever wait.

    python -m benchmarks.unique [--quick] [--jobs 100000] [--keys 1000] [--connections 16] [--rounds 5]

Rounds alternate between jobs with and without unique keys. At the same time, a leader drains, a worker claims and
finishes, and a third session looks for keys with two waiting jobs in flight.
"""

from __future__ import annotations

import statistics
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from multiprocessing import get_context
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Literal

import psycopg

from benchmarks import alone, figures
from drain import stage
from drain.config import Settings
from drain.database import postgres
from drain.enqueuer.daemon import Daemon
from drain.tables import claims, finishes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drain.embedded import Services

# Full and short sizes.
SIZES = {"jobs": (100_000, 8000), "keys": (1000, 100), "connections": (16, 16), "rounds": (5, 1)}
_PROCESSES = 4
_KEEP: tuple[Literal["first"], Literal["last"]] = ("first", "last")
_TWO_WAIT = """
SELECT count(*) FROM (
    SELECT FROM inflight_jobs WHERE unique_key IS NOT NULL AND lease_expires_at IS NULL
    GROUP BY job_name, unique_key HAVING count(*) > 1) AS shared
"""
_WAITING = "SELECT id, delivery FROM inflight_jobs WHERE lease_expires_at IS NULL LIMIT 100"
_EMPTY = "TRUNCATE staged_jobs, inflight_jobs, finished_jobs, idempotency_keys"


def section(services: Services, *, jobs: int, keys: int, connections: int, rounds: int) -> str:
    """Measure and return the figures as Markdown."""
    figures.say("unique keys")
    rates: dict[bool, list[float]] = {True: [], False: []}
    looks = two = superseded = 0
    with (
        ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool,
        psycopg.connect(services.database_url, autocommit=True) as connection,
    ):
        for number in range(2 * rounds):
            is_unique = number % 2 == 0
            connection.execute(_EMPTY)
            with _draining(services) as watch:
                rates[is_unique].append(
                    _stage_all(
                        pool,
                        services.database_url,
                        jobs // rounds,
                        keys,
                        connections,
                        is_unique=is_unique,
                    )
                )
            looks, two = looks + watch.looks, two + watch.two
            superseded += _count(connection, "SELECT count(superseded_by) FROM finished_jobs")
            figures.say(f"  {'with' if is_unique else 'without'}: {rates[is_unique][-1]:,.0f} a second")
    table = figures.table(
        ("staged in single transactions", "rows a second, median", "lowest – highest"),
        [
            (name, f"{statistics.median(v):,.0f}", f"{min(v):,.0f} – {max(v):,.0f}")
            for name, v in (("with a unique key", rates[True]), ("without", rates[False]))
        ],
    )
    return (
        f"## Unique keys\n\n{table}\n\n"
        f"Rate with a unique key, as a fraction of that without: {figures.ratio(rates[True], rates[False], 2)}. "
        f"{jobs:,} jobs on {keys:,} keys from {connections} connections, half of them `last`; "
        f"{superseded:,} were superseded. Two jobs of one key waited at {two} of {looks:,} looks."
    )


class _Watch:
    looks = 0
    two = 0


@contextmanager
def _draining(services: Services) -> Iterator[_Watch]:
    """Lead, work and watch while the block runs, and until nothing is staged."""
    # Nothing is popped: the worker reads ids from the table.
    settings = Settings(database_url=services.database_url, redis_url=services.redis_url, depth=0)
    daemon = Daemon(settings)
    done, watch = threading.Event(), _Watch()
    threads = [
        threading.Thread(target=daemon.run),
        threading.Thread(target=_work, args=(services.database_url, done)),
        threading.Thread(target=_look, args=(services.database_url, done, watch)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield watch
        with psycopg.connect(services.database_url, autocommit=True) as connection:
            while _count(connection, "SELECT count(*) FROM staged_jobs"):
                sleep(0.1)
    finally:
        done.set()
        daemon.stop()
        for thread in threads:
            thread.join()


def _look(database_url: str, done: threading.Event, watch: _Watch) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        while not done.wait(0.02):
            watch.looks += 1
            watch.two += _count(connection, _TWO_WAIT) > 0


def _work(database_url: str, done: threading.Event) -> None:
    with postgres.connect(database_url, "worker") as connection:
        while not done.wait(0.05):
            ids = dict(connection.execute(_WAITING).fetchall())
            held = claims.claim_many(connection, ids, worker="worker", limits={}) if ids else []
            if held:
                finishes.finish_many(connection, held)


def _stage_all(
    pool: ProcessPoolExecutor, url: str, jobs: int, keys: int, connections: int, *, is_unique: bool
) -> float:
    each = connections // _PROCESSES
    parts = [
        pool.submit(_stage_part, url, jobs // _PROCESSES, keys if is_unique else 0, each)
        for _ in range(_PROCESSES)
    ]
    seconds = list(chain.from_iterable(part.result() for part in parts))
    return jobs / max(seconds)


def _stage_part(url: str, jobs: int, keys: int, connections: int) -> list[float]:
    """Stage jobs on several connections of this process; returns the seconds of each."""
    with ThreadPoolExecutor(connections) as threads:
        work = [threads.submit(_stage, url, jobs // connections, keys) for _ in range(connections)]
        return [each.result() for each in work]


def _stage(url: str, jobs: int, keys: int) -> float:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        began = perf_counter()
        for number in range(jobs):
            if keys:
                key = f"key:{number % keys}"
                stage(connection, "bench.unique", [number], unique_key=key, keep=_KEEP[number % 2])
            else:
                stage(connection, "bench.unique", [number])
        return perf_counter() - began


def _count(connection: psycopg.Connection, statement: str) -> int:
    (row,) = connection.execute(statement.encode()).fetchall()
    return int(row[0])


if __name__ == "__main__":
    alone.run("unique", section, SIZES)
