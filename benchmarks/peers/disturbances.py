"""Rates of a queue while other sessions disturb it."""

from __future__ import annotations

import statistics
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, process_time
from typing import TYPE_CHECKING

import psycopg
from psycopg import IsolationLevel

from benchmarks import figures
from benchmarks.peers import peers, processes, rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer
    from benchmarks.peers.rate import Run

READERS = 4
# First words of the disturbance whose ratio is one of the goals.
HELD = "a snapshot has been held for"
# Reads in one transaction, before a reader releases its snapshot.
_LOOKS = 20
_LAST_RUNS = 3


@dataclass(frozen=True)
class Disturbed:
    """One peer under one disturbance.

    Attributes:
        peer: Name of the peer.
        what: The disturbance.
        alone: Jobs a second without other sessions, by run; some runs before and some after the disturbances.
        disturbed: The same alongside the disturbance.
        counted_out: The same, divided by the fraction of processor time that the others left.
    """

    peer: str
    what: str
    alone: list[float]
    disturbed: list[float]
    counted_out: list[float]


def measure(
    bench: Bench, peer: Peer, jobs: int, seconds: float, *, scheduled: int, hold_seconds: float
) -> list[Disturbed]:
    """Measure one peer, alone and under each disturbance.

    Args:
        bench: Environment of the measurement.
        peer: Peer that keeps its queue in Postgres.
        jobs: Jobs per run.
        seconds: Expected duration of a run.
        scheduled: Jobs scheduled for tomorrow.
        hold_seconds: How long a snapshot is held while jobs run.
    """

    def run(used_by_others: Callable[[], float] = lambda: 0.0) -> Run:
        programs = peer.programs(bench.services.redis_url, peers.PROCESSES)
        return rate.measure(bench, peer, "noop", jobs, seconds, programs, used_by_others)

    bench.reset(peer)
    alone = [run().rate for _ in range(_LAST_RUNS)]
    found = {}
    bench.reset(peer)
    _schedule(bench, peer, scheduled)
    found[f"{scheduled:,} jobs are scheduled for tomorrow"] = [run() for _ in range(_LAST_RUNS)]
    bench.reset(peer)
    with _readers(bench, peer) as used:
        found[f"{READERS} sessions read the queue's table, each under one snapshot for long"] = [
            run(used) for _ in range(_LAST_RUNS)
        ]
    bench.reset(peer)
    with _held_snapshot(bench):
        found[f"{HELD} {hold_seconds:.0f} s of work"] = _last_of(run, hold_seconds)
    bench.reset(peer)
    alone += [run().rate for _ in range(_LAST_RUNS)]
    for what, runs in found.items():
        median = statistics.median(each.rate for each in runs) / statistics.median(alone)
        figures.say(f"  {peer.name}: {what}: {median:.2f}")
    return [
        Disturbed(
            peer.name,
            what,
            alone,
            [each.rate for each in runs],
            [each.rate / (1 - each.share_of_others) for each in runs],
        )
        for what, runs in found.items()
    ]


def _last_of(run: Callable[[], Run], seconds: float) -> list[Run]:
    """Run repeatedly for `seconds`; returns the last runs."""
    deadline = monotonic() + seconds
    runs = [run() for _ in range(_LAST_RUNS)]
    while monotonic() < deadline:
        runs.append(run())
    return runs[-_LAST_RUNS:]


def _schedule(bench: Bench, peer: Peer, jobs: int) -> None:
    assert peer.schedule
    with psycopg.connect(bench.database_url, autocommit=True) as connection:
        connection.execute(peer.schedule, (jobs,))
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


@contextmanager
def _readers(bench: Bench, peer: Peer) -> Iterator[Callable[[], float]]:
    """Read while the block runs; yields a function for the processor time of readers and their backends so far."""
    assert peer.read
    statement = peer.read
    ended = threading.Event()
    backends: list[int] = []

    def read() -> None:
        with psycopg.connect(bench.database_url) as connection:
            backends.append(connection.info.backend_pid)
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            while not ended.is_set():
                for _ in range(_LOOKS):
                    connection.execute(statement)
                    # Pause like a user: four readers without pauses would only test two cores.
                    if ended.wait(0.1):
                        break
                connection.rollback()

    readers = [threading.Thread(target=read) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        yield lambda: process_time() + processes.cpu_seconds(backends)
    finally:
        ended.set()
        for reader in readers:
            reader.join()


@contextmanager
def _held_snapshot(bench: Bench) -> Iterator[None]:
    with psycopg.connect(bench.database_url) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT pg_current_xact_id()")
        yield
        connection.rollback()
