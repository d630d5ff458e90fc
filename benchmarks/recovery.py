"""Recovery time after the death of a worker, of its process or of a leader, and after a FLUSHALL of Redis."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import contextmanager
from statistics import median
from time import monotonic, sleep
from typing import TYPE_CHECKING, TypeVar

import psycopg
import redis

from benchmarks import figures
from benchmarks.peers.processes import family
from benchmarks.processes import command
from benchmarks.rates import refill
from drain import stage, stage_many
from drain.workers import job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from subprocess import Popen

    from drain.embedded import Services

T = TypeVar("T")

LEASE_SECONDS = 3
PREFETCHED = 100
# Jobs a second that an application stages during the measurement.
LOAD_PER_SECOND = 200
_PATIENCE_SECONDS = 120


@job(name="benchmark.hang", queue="hanging", lease_seconds=LEASE_SECONDS, timeout_seconds=600)
def hang() -> None:
    """Run until the worker is killed."""
    sleep(600)


@job(name="benchmark.brief", queue="brief")
def brief() -> None:
    """Leave time for the kill while others wait."""
    sleep(0.002)


def section(services: Services, jobs: int, rounds: int) -> str:
    """Measure all recoveries, and return the section of RESULTS.md."""
    figures.say("recovery")
    leaders = [after_a_leaders_death(services) for _ in range(rounds)]
    flushes = [after_a_flush(services, jobs) for _ in range(rounds)]
    workers = [after_a_workers_death(services) for _ in range(rounds)]
    processes = [after_a_processs_death(services) for _ in range(rounds)]
    rows = [
        ("a leader's SIGKILL → the standby has pushed a job staged just then", leaders, "under 2"),
        ("FLUSHALL → the first job is queued again", [noticed for noticed, _ in flushes], "under 2"),
        (f"FLUSHALL → all {jobs:,} are", [whole for _, whole in flushes], "under 10"),
        (
            f"a worker's SIGKILL, its lease of {LEASE_SECONDS} s just extended → another one has its job",
            workers,
            f"under {LEASE_SECONDS + 2}",
        ),
        (
            f"SIGKILL of a worker's process with {PREFETCHED} jobs in hand → its successor has given back all",
            processes,
            "under 2",
        ),
    ]
    table = figures.table(
        ("from → to", "seconds", "lowest – highest", "to reach"),
        [
            (name, f"{median(values):.2f}", f"{min(values):.2f} – {max(values):.2f}", goal)
            for name, values, goal in rows
        ],
    )
    figures.say(table)
    return (
        f"## After a death, or a loss of memory\n\n{table}\n\n{rounds} rounds each. While Redis forgets, "
        f"an application keeps staging {LOAD_PER_SECOND} jobs a second. A job's lease is 30 s unless its "
        "registration says otherwise."
    )


def after_a_workers_death(services: Services) -> float:
    """Measure the seconds from the SIGKILL of a worker until another one has claimed its job."""
    refill(services, 0)
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        stage(connection, hang)
        with (
            command(services, "run", "--metrics-port", "0"),
            command(services, "work", "hanging", jobs="benchmarks.recovery") as first,
        ):
            _wait_for(lambda: _token(connection) == 1)
            with command(services, "work", "hanging", jobs="benchmarks.recovery") as second:
                # The longest case is a lease that has just been extended.
                lease = _lease_end(connection)
                _wait_for(lambda: _lease_end(connection) != lease)
                killed = _kill(first)
                _wait_for(lambda: _token(connection) == 2)
                seconds = monotonic() - killed
                # The job would hang here as well.
                second.kill()
    return seconds


def after_a_processs_death(services: Services) -> float:
    """Measure the seconds from the SIGKILL of a process of `drain work` until none of its jobs is claimed by it."""
    refill(services, 0)
    with (
        psycopg.connect(services.database_url, autocommit=True) as connection,
        command(services, "run", "--metrics-port", "0"),
        command(services, "work", "brief", "--prefetch", str(PREFETCHED), jobs="benchmarks.recovery"),
    ):
        stage_many(connection, brief, (() for _ in range(20 * PREFETCHED)))
        worker = _wait_for(lambda: _worker_of_many(connection))
        os.kill(int(worker.split(":")[1]), signal.SIGKILL)
        killed = monotonic()
        _wait_for(lambda: not _claimed_by(connection, worker))
        return monotonic() - killed


def after_a_leaders_death(services: Services) -> float:
    """Measure the seconds from the SIGKILL of the leader until the standby has pushed a job staged at the kill."""
    refill(services, 0)
    with (
        psycopg.connect(services.database_url, autocommit=True) as connection,
        redis.Redis.from_url(services.redis_url) as client,
        command(services, "run", "--metrics-port", "0") as leader,
    ):
        stage(connection, "benchmark.first", queue="first")
        _wait_for(lambda: client.llen("rq:queue:first"))
        with command(services, "run", "--metrics-port", "0") as standby:
            _wait_for(lambda: _drainers(connection) == 2)
            # At a random time within the standby's polling interval.
            sleep(random.uniform(0.5, 1.5))
            assert standby.poll() is None
            killed = _kill(leader)
            stage(connection, "benchmark.second", queue="second")
            _wait_for(lambda: client.llen("rq:queue:second"))
            return monotonic() - killed


def after_a_flush(services: Services, jobs: int) -> tuple[float, float]:
    """Measure the seconds from FLUSHALL until the loss is noticed, and until all of the jobs are queued again."""
    refill(services, jobs)
    with (
        redis.Redis.from_url(services.redis_url) as client,
        command(services, "run", "--metrics-port", "0", "--depth", "0"),
    ):
        _wait_for(lambda: client.llen("rq:queue:default") == jobs)
        with _load(services):
            _wait_for(lambda: client.llen("rq:queue:load"))
            client.flushall()
            flushed = monotonic()
            _wait_for(lambda: client.llen("rq:queue:default"))
            noticed = monotonic() - flushed
            _wait_for(lambda: client.llen("rq:queue:default") == jobs)
            return noticed, monotonic() - flushed


@contextmanager
def _load(services: Services) -> Iterator[None]:
    ended = threading.Event()

    def apply() -> None:
        with psycopg.connect(services.database_url, autocommit=True) as connection:
            while not ended.wait(1 / LOAD_PER_SECOND):
                stage(connection, "benchmark.load", queue="load")

    application = threading.Thread(target=apply)
    application.start()
    try:
        yield
    finally:
        ended.set()
        application.join()


def _kill(process: Popen[bytes]) -> float:
    # Kill all processes, as when a machine dies: an orphaned child would have time to finish its job.
    for pid in family([process.pid]):
        os.kill(pid, signal.SIGKILL)
    return monotonic()


def _token(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT max(fencing_token) FROM inflight_jobs").fetchone()
    return row[0] if row and row[0] else 0


def _lease_end(connection: psycopg.Connection) -> object:
    row = connection.execute("SELECT lease_expires_at FROM inflight_jobs").fetchone()
    return row and row[0]


def _worker_of_many(connection: psycopg.Connection) -> str:
    row = connection.execute(
        "SELECT claimed_by FROM inflight_jobs WHERE lease_expires_at IS NOT NULL "
        "GROUP BY claimed_by HAVING count(*) > %s",
        (PREFETCHED // 2,),
    ).fetchone()
    return row[0] if row else ""


def _claimed_by(connection: psycopg.Connection, worker: str) -> int:
    return connection.execute(
        "SELECT FROM inflight_jobs WHERE claimed_by = %s AND lease_expires_at IS NOT NULL", (worker,)
    ).rowcount


def _drainers(connection: psycopg.Connection) -> int:
    return connection.execute(
        "SELECT FROM pg_stat_activity WHERE application_name = 'drain run' AND datname = current_database()"
    ).rowcount


def _wait_for(condition: Callable[[], T]) -> T:
    deadline = monotonic() + _PATIENCE_SECONDS
    while not (value := condition()):
        if monotonic() > deadline:
            raise TimeoutError("the measured event did not happen")
        sleep(0.002)
    return value
