"""Drain rate alongside a session with an old snapshot, and alongside a million jobs scheduled for tomorrow."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg
from psycopg import IsolationLevel

from benchmarks import rates
from benchmarks.processes import command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drain.embedded import Services

# Batches of rows that are staged and drained beforehand, under the same snapshot.
BEFORE = (100_000, 100_000, 100_000)
SCHEDULED = 1_000_000
_FILL_SCHEDULED = """
INSERT INTO staged_jobs (job_name, scheduled_at)
SELECT 'shop.jobs.send_receipt', now() + interval '1 day' + n * interval '1 s' FROM generate_series(1, %s) AS n
"""
_SIZE = """
SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('staged_jobs')
"""
_LONGEST_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Drained:
    """One run of `drain run`.

    Attributes:
        rate: Jobs a second, from the commit of the backlog to its last push.
        megabytes: Size of staged_jobs and its indexes when full.
        megabytes_afterwards: The same after the turn of each partition, when they were truncated.
    """

    rate: float
    megabytes: float
    megabytes_afterwards: float


def drained(services: Services, backlog: int, *, held: bool) -> Drained:
    """Drain a backlog; if `held`, alongside a snapshot from before the first row was staged."""
    rates.refill(services, 0)
    snapshot = held_snapshot(services) if held else nullcontext()
    with snapshot, command(services, "run", "--metrics-port", "0", "--depth", "0"):
        for jobs in BEFORE:
            _stage_and_wait(services, jobs)
        seconds, megabytes = _stage_and_wait(services, backlog)
        return Drained(backlog / seconds, megabytes, _megabytes_afterwards(services))


def beside_scheduled(services: Services, jobs: int, scheduled: int) -> float:
    """Measure jobs a second alongside this many jobs scheduled for tomorrow."""
    rates.refill(services, jobs)
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute(_FILL_SCHEDULED, (scheduled,))
        connection.execute("VACUUM ANALYZE staged_jobs")
        connection.execute("CHECKPOINT")
    return rates.moved_and_pushed(services, jobs)


@contextmanager
def held_snapshot(services: Services) -> Iterator[None]:
    """Hold a transaction with an id and a snapshot open while the block runs."""
    with psycopg.connect(services.database_url) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT pg_current_xact_id()")
        yield
        connection.rollback()


def _stage_and_wait(services: Services, jobs: int) -> tuple[float, float]:
    """Stage in one transaction; returns the seconds until all are pushed, and megabytes after the commit."""
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        pushed = _pushed(connection)
        connection.execute(rates.FILL, (jobs,))
        began = monotonic()
        megabytes = _megabytes(connection)
        while _pushed(connection) < pushed + jobs:
            assert monotonic() < began + _LONGEST_SECONDS, "the drain has stalled"
            sleep(0.02)
        return monotonic() - began, megabytes


def _megabytes_afterwards(services: Services) -> float:
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        megabytes = before = _megabytes(connection)
        # An autovacuum of the partition holds the lock that the truncation needs.
        deadline = monotonic() + 60
        while megabytes > before / 10 and monotonic() < deadline:
            sleep(0.2)
            megabytes = _megabytes(connection)
        return megabytes


def _pushed(connection: psycopg.Connection) -> int:
    ((pushed_up_to,),) = connection.execute("SELECT last_value FROM drain_pushed_up_to").fetchall()
    return int(pushed_up_to)


def _megabytes(connection: psycopg.Connection) -> float:
    ((size,),) = connection.execute(_SIZE).fetchall()
    return float(size) / 1e6
