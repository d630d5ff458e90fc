"""Latency from commit to Redis and to the start of the job, under a steady load of small transactions."""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import closing
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psycopg
import redis

from benchmarks.processes import command
from drain import stage
from drain.workers import job

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.queues import SimpleQueue

    from drain.embedded import Services

PER_SECOND = 500
THREADS = 4
# One job in this many goes to a queue with a worker. RQ's own workers run about 200 jobs a second on two cores, so the
# arrival of the others is read from a queue without one.
WORKED_ONE_IN = 25
_TAKEN_TOGETHER = 200

Times = dict[int, float]
# Seconds from each claim to the start of the statement.
_AGES = "SELECT id, extract(epoch FROM now() - claimed_at)::float8 FROM finished_jobs"


@job(name="benchmark.started", queue="worked")
def started() -> None:
    """Do nothing; `finished_jobs.claimed_at` is the start of the job."""


def measure(services: Services, seconds: float) -> tuple[list[float], list[float]]:
    """Measure latencies in seconds: from commit to Redis, and from commit to the start of the job."""
    with (
        command(services, "run", "--metrics-port", "0"),
        command(services, "work", "worked", jobs="benchmarks.latency"),
    ):
        _wait_until_worked(services)
        committed: SimpleQueue[tuple[Times, Times]] = multiprocessing.SimpleQueue()
        application = multiprocessing.Process(
            target=_application, args=(services.database_url, seconds, committed)
        )
        application.start()
        arrived = _arrivals(services, int(PER_SECOND * seconds * (1 - 1 / WORKED_ONE_IN)))
        popped, worked = committed.get()
        application.join()
        starts = _starts(services, set(worked))
    return (
        [arrived[id_] - popped[id_] for id_ in popped],
        [starts[id_] - worked[id_] for id_ in worked],
    )


def at_a_rate(
    database_url: str, per_second: int, seconds: float, act: Callable[[psycopg.Connection[Any], int], object]
) -> None:
    """Call `act` at this rate on a few connections, regardless of how long each call takes."""
    until = int(per_second * seconds)
    began = monotonic() + 0.1

    def run(thread: int) -> None:
        with psycopg.connect(database_url) as connection:
            for number in range(thread, until, THREADS):
                sleep(max(0.0, began + number / per_second - monotonic()))
                act(connection, number)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _application(database_url: str, seconds: float, committed: SimpleQueue[tuple[Times, Times]]) -> None:
    """Commit PER_SECOND transactions a second, each with one staged job."""
    popped: Times = {}
    worked: Times = {}

    def commit(connection: psycopg.Connection[Any], number: int) -> None:
        is_worked = number % WORKED_ONE_IN == 0
        id_ = stage(connection, started, queue="worked" if is_worked else "popped")
        connection.commit()
        (worked if is_worked else popped)[id_] = monotonic()

    at_a_rate(database_url, PER_SECOND, seconds, commit)
    committed.put((popped, worked))


def _arrivals(services: Services, count: int) -> Times:
    arrived: Times = {}
    client: Any
    with (
        closing(redis.Redis.from_url(services.redis_url)) as client,
        psycopg.connect(services.database_url, autocommit=True) as connection,
    ):
        taken: list[int] = []
        while len(arrived) < count:
            popped = client.blpop(["rq:queue:popped"], timeout=30)
            if popped is None:
                raise TimeoutError(f"only {len(arrived)} of {count} jobs arrived")
            taken.append(int(popped[1].split(b"-")[-2]))
            arrived.setdefault(taken[-1], monotonic())
            # A job that is popped but never claimed looks lost, and would be pushed again.
            if len(taken) == _TAKEN_TOGETHER:
                connection.execute("DELETE FROM inflight_jobs WHERE id = ANY (%s)", (taken,))
                taken = []
    return arrived


def _starts(services: Services, ids: set[int]) -> Times:
    """Read the time of each job's claim, by this process's clock."""
    deadline = monotonic() + 60
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        while monotonic() < deadline:
            now = monotonic()
            ages: Times = dict(connection.execute(_AGES).fetchall())
            if ids <= ages.keys():
                return {id_: now - ages[id_] for id_ in ids}
            sleep(0.2)
    raise TimeoutError("the worker did not finish its jobs")


def _wait_until_worked(services: Services) -> None:
    """Wait until a job has finished: both processes are then ready."""
    with psycopg.connect(services.database_url) as connection:
        first = stage(connection, started)
        connection.commit()
    _starts(services, {first})
