"""Jobs a second: the queue is filled first, then the workers start."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import redis

from benchmarks.peers import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer, Program

_CORES = os.cpu_count() or 1
# A run that takes this many times as long as expected is stopped.
_PATIENCE = 4
_FINISH_SECONDS = 10
# The next transaction id counts transactions and savepoints that have written.
_WRITTEN = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint
"""


@dataclass(frozen=True)
class Run:
    """One run of a full queue.

    Attributes:
        jobs: Number of jobs done.
        rate: Jobs a second, from the first job done to the last.
        finished_rate: The same until the last job was recorded as finished, if Postgres knows.
        cpu_seconds: Processor time of 100,000 jobs: workers, enqueuer, PostgreSQL and Redis.
        worker_megabytes: Memory of all worker processes together when the last job was done.
        enqueuer_megabytes: Memory of the peer's other processes.
        cpu_by_part: `cpu_seconds` by part: each store, and the programs of the peer.
        share_of_others: Fraction of all processor time used by other sessions during the run.
        wal_bytes: Bytes of WAL per job, from its staging to its finish.
        transactions: Ids of transactions and savepoints that wrote, per job, after its staging.
    """

    jobs: int
    rate: float
    finished_rate: float
    cpu_seconds: float
    worker_megabytes: float
    enqueuer_megabytes: float
    cpu_by_part: dict[str, float] = field(default_factory=dict)
    share_of_others: float = 0.0
    wal_bytes: float = 0.0
    transactions: float = 0.0


@dataclass(frozen=True)
class Stored:
    """Bytes per queued job, indexes included."""

    postgres: float
    redis: float


def measure(
    bench: Bench,
    peer: Peer,
    name: str,
    jobs: int,
    seconds: float,
    programs: Sequence[Program],
    used_by_others: Callable[[], float] = lambda: 0.0,
) -> Run:
    """Run this many jobs of this name.

    Args:
        bench: Prepared for the peer; rows in its tables stay there.
        peer: Peer to measure.
        name: Name of the job.
        jobs: Number of jobs.
        seconds: Expected duration.
        programs: Programs that run the jobs.
        used_by_others: Processor time used by other sessions so far, in seconds.
    """
    bench.forget()
    unfilled = _written(bench)
    bench.fill(peer, name, jobs)
    filled = _written(bench)
    with bench.running(programs) as running:
        # Processor time counts from the first job, to exclude the import of modules.
        bench.wait_for_jobs(1, seconds)
        first, used_first = bench.counter.read().jobs, bench.cpu_seconds(running)
        began, others_first = monotonic(), used_by_others()
        bench.wait_for_jobs(jobs, _PATIENCE * seconds)
        others = (used_by_others() - others_first) / max(monotonic() - began, 1e-6) / _CORES
        done = bench.counter.read()
        finished = _finished(bench, peer) if done.jobs >= jobs else done.last
        used = bench.cpu_seconds(running)
        written = _written(bench)
        workers, others = (processes.megabytes(pids) for pids in (running.workers, running.others))
    by_part = {
        part: (so_far - used_first[part]) / max(done.jobs - first, 1) * 100_000
        for part, so_far in used.items()
    }
    return Run(
        jobs=done.jobs,
        rate=(done.jobs - 1) / max(done.last - done.first, 1e-6),
        finished_rate=(done.jobs - 1) / max(max(finished, done.last) - done.first, 1e-6),
        cpu_seconds=sum(by_part.values()),
        worker_megabytes=workers,
        enqueuer_megabytes=others,
        cpu_by_part=by_part,
        share_of_others=others,
        wal_bytes=(written.wal_bytes - unfilled.wal_bytes) / max(done.jobs, 1),
        transactions=(written.transactions - filled.transactions) / max(done.jobs, 1),
    )


class _Written(NamedTuple):
    """Totals written by PostgreSQL so far."""

    wal_bytes: int
    transactions: int


def _written(bench: Bench) -> _Written:
    with psycopg.connect(bench.database_url, autocommit=True) as connection:
        return _Written(*connection.execute(_WRITTEN).fetchall()[0])


def _finished(bench: Bench, peer: Peer) -> float:
    """Wait until all jobs are recorded as finished, which some peers do in batches afterwards; returns the time."""
    deadline = monotonic() + _FINISH_SECONDS
    if peer.unfinished:
        with psycopg.connect(bench.database_url, autocommit=True) as connection:
            while connection.execute(peer.unfinished).rowcount and monotonic() < deadline:
                sleep(0.02)
    return monotonic() if peer.unfinished else 0.0


def stored(bench: Bench, peer: Peer, jobs: int, drain: Sequence[Program]) -> Stored:
    """Measure the size of a queued job.

    Args:
        bench: Environment of the measurement.
        peer: Peer to measure.
        jobs: Number of queued jobs.
        drain: Programs that bring the jobs from Postgres to Redis, for a peer that stages them in Postgres first.
    """
    bench.reset(peer)
    before = _sizes(bench)
    bench.fill(peer, "noop", jobs)
    after = _sizes(bench)
    if drain:
        with bench.running(drain):
            after = Stored(after.postgres, _settled_redis(bench))
    return Stored((after.postgres - before.postgres) / jobs, (after.redis - before.redis) / jobs)


def _sizes(bench: Bench) -> Stored:
    with psycopg.connect(bench.database_url, autocommit=True) as connection:
        ((size,),) = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
            "WHERE relkind IN ('r', 'm') AND relnamespace::regnamespace::text !~ '^(pg_|information_schema)'"
        ).fetchall()
    return Stored(float(size), _redis_bytes(bench))


def _redis_bytes(bench: Bench) -> float:
    with redis.Redis.from_url(bench.services.redis_url) as client:
        return float(client.info("memory")["used_memory"])


def _settled_redis(bench: Bench) -> float:
    """Memory of Redis after everything staged has been pushed."""
    deadline = monotonic() + 60
    with psycopg.connect(bench.database_url, autocommit=True) as connection:
        while monotonic() < deadline:
            connection.execute("SELECT pg_sleep(0.5)")
            if not connection.execute("SELECT FROM staged_jobs LIMIT 1").rowcount:
                connection.execute("SELECT pg_sleep(0.5)")
                return _redis_bytes(bench)
    raise TimeoutError("the enqueuer does not drain")
