"""Jobs a second that reach Redis through the drain, through each of its halves alone, and through RQ's functions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import psycopg
import redis
from rq import Queue

from benchmarks.processes import cpu_seconds
from drain import wire
from drain.database import postgres
from drain.enqueuer import leader
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.thin_queues import ThinQueues
from drain.wire import Producer, thin_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drain.embedded import Services

BATCH_SIZE = 2500
NAMESPACE = "bench"
INSTALLATION = "6a0f4f4c-8a37-4c5c-9d53-0d6d7e1c0b11"
FILL = """
INSERT INTO staged_jobs (job_name, job_args)
SELECT 'shop.jobs.send_receipt', jsonb_build_array(n, 'user' || n) FROM generate_series(1, %s) AS n
"""


class DiscardingProducer(Producer):
    """Producer that discards jobs, so that only the move in PostgreSQL is measured."""

    def push(self, deliveries: object) -> Counter[str]:  # noqa: ARG002
        """Discard the jobs."""
        return Counter()


def refill(services: Services, rows: int) -> None:
    """Empty the database, stage this many rows, and let the server finish its background work."""
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute(
            "TRUNCATE staged_jobs, inflight_jobs, finished_jobs, dead_jobs, job_edges, flows, job_waits, job_events, "
            "job_steps"
        )
        # As in a new database; otherwise the empty Redis would look like one that has lost its data.
        connection.execute("SELECT setval('drain_last_delivery', 0), setval('drain_pushed_up_to', 0)")
        connection.execute(FILL, (rows,))
        connection.execute("VACUUM ANALYZE staged_jobs")
        connection.execute("CHECKPOINT")
    # Not in the background, where Redis would delete millions of keys during the measurement.
    with redis.Redis.from_url(services.redis_url, socket_timeout=60) as client:
        client.flushall()


def moved_and_pushed(services: Services, jobs: int, *, thin: bool = False) -> float:
    """Measure the drain: tracked jobs a second, from committed rows to Redis lists.

    Args:
        services: Servers.
        jobs: Number of jobs.
        thin: Push ids without hashes, as when only `drain work` listens.
    """
    return _drained(services, Producer(services.redis_url, NAMESPACE), jobs, thin=thin)


def moved_alone(services: Services, jobs: int) -> float:
    """Measure the drain without Redis."""
    return _drained(services, DiscardingProducer(services.redis_url, NAMESPACE), jobs)


def pushed_alone(services: Services, jobs: int) -> float:
    """Measure the push alone, without Postgres, from encoded batches."""
    batches = [
        [
            wire.tracked(NAMESPACE, n, "default", "shop.jobs.send_receipt", None, n, INSTALLATION)
            for n in range(first, min(first + BATCH_SIZE, jobs))
        ]
        for first in range(0, jobs, BATCH_SIZE)
    ]
    redis_ = Producer(services.redis_url, NAMESPACE)

    def push() -> None:
        for batch in batches:
            redis_.push(batch)

    return _rate(jobs, push)


def pushed_thin_alone(services: Services, jobs: int) -> float:
    """Measure the push of ids alone, without Postgres, from encoded batches."""
    batches = [
        [thin_id(NAMESPACE, n, n) for n in range(first, min(first + BATCH_SIZE, jobs))]
        for first in range(0, jobs, BATCH_SIZE)
    ]
    redis_ = Producer(services.redis_url, NAMESPACE)

    def push() -> None:
        for batch in batches:
            redis_.push_thin({"default": batch})

    return _rate(jobs, push)


def cpu_by_process(services: Services, jobs: int, *, thin: bool) -> dict[str, float]:
    """Measure the processor time of one drain, in microseconds per job, by process."""
    with leading(services, Producer(services.redis_url, NAMESPACE), thin=thin) as enqueuer:
        backend = enqueuer.connection.info.backend_pid
        pids = {"PostgreSQL": backend, "Redis": services.redis.pid, "enqueuer": os.getpid()}
        before = {name: cpu_seconds(pid) for name, pid in pids.items() if pid}
        while enqueuer.run_once():
            pass
        enqueuer.flush()
        return {name: (cpu_seconds(pid) - before[name]) / jobs * 1e6 for name, pid in pids.items() if pid}


def enqueued_one_by_one(services: Services, jobs: int) -> float:
    """Measure `Queue.enqueue` in a loop, as in the article that named the pattern."""
    with _queue(services) as queue:
        return _rate(
            jobs, lambda: [queue.enqueue("shop.jobs.send_receipt", n, f"user{n}") for n in range(jobs)]
        )


def enqueued_in_thousands(services: Services, jobs: int) -> float:
    """Measure `Queue.enqueue_many`, a thousand jobs a call."""
    with _queue(services) as queue:

        def enqueue(first: int) -> object:
            return queue.enqueue_many(
                [
                    Queue.prepare_data("shop.jobs.send_receipt", (n, f"user{n}"))
                    for n in range(first, first + 1000)
                ]
            )

        return _rate(jobs, lambda: [enqueue(first) for first in range(0, jobs, 1000)])


def _drained(services: Services, redis_: Producer, jobs: int, *, thin: bool = False) -> float:
    with leading(services, redis_, thin=thin) as enqueuer:

        def drain() -> None:
            drained = 0
            while drained < jobs:
                drained += enqueuer.run_once()
            enqueuer.flush()

        return _rate(jobs, drain)


@contextmanager
def leading(services: Services, redis_: Producer, *, thin: bool = False) -> Iterator[Enqueuer]:
    """Lead while the block runs."""
    with postgres.connect(services.database_url, "benchmark") as connection:
        state = leader.try_to_lead(connection)
        assert state is not None
        queues = ThinQueues(redis_, always={"*"} if thin else ())
        with Enqueuer(connection, redis_, state, batch_size=BATCH_SIZE, thin_queues=queues) as enqueuer:
            yield enqueuer


@contextmanager
def _queue(services: Services) -> Iterator[Queue]:
    with redis.Redis.from_url(services.redis_url) as client:
        client.flushall()
        yield Queue("default", connection=client)


def _rate(jobs: int, act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return jobs / (perf_counter() - began)
