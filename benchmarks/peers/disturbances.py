"""What other sessions do while a queue is worked on, and how much of its rate is left."""

from __future__ import annotations

import statistics
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import psycopg
from psycopg import IsolationLevel

from benchmarks import figures
from benchmarks.peers import rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer

READERS = 4
# A reader's transaction looks at the table so often before it gives its snapshot back.
_LOOKS = 20
_LAST_RUNS = 3


@dataclass(frozen=True)
class Disturbed:
    """One peer under one disturbance.

    Attributes:
        peer: Whose jobs.
        what: What others did meanwhile.
        alone: Jobs a second with nobody else there, a run each.
        disturbed: The same beside the disturbance.
    """

    peer: str
    what: str
    alone: list[float]
    disturbed: list[float]


def measure(
    bench: Bench, peer: Peer, jobs: int, seconds: float, *, scheduled: int, hold_seconds: float
) -> list[Disturbed]:
    """One peer, alone and under each disturbance.

    Args:
        bench: To measure in.
        peer: One that keeps its queue in Postgres.
        jobs: How many a run.
        seconds: How long a run should take.
        scheduled: How many jobs wait for tomorrow.
        hold_seconds: How long a snapshot is held, jobs being worked all the while.
    """

    def run() -> float:
        return rate.measure(bench, peer, "noop", jobs, seconds, peer.programs(bench.services.redis_url)).rate

    bench.reset(peer)
    alone = [run() for _ in range(_LAST_RUNS)]
    found = {}
    bench.reset(peer)
    _schedule(bench, peer, scheduled)
    found[f"{scheduled:,} jobs are scheduled for tomorrow"] = [run() for _ in range(_LAST_RUNS)]
    bench.reset(peer)
    with _readers(bench, peer):
        found[f"{READERS} sessions read the queue's table, each under one snapshot for long"] = [
            run() for _ in range(_LAST_RUNS)
        ]
    bench.reset(peer)
    with _held_snapshot(bench):
        found[f"a snapshot has been held for {hold_seconds:.0f} s of work"] = _last_of(run, hold_seconds)
    for what, rates in found.items():
        figures.say(f"  {peer.name}: {what}: {statistics.median(rates) / statistics.median(alone):.2f}")
    return [Disturbed(peer.name, what, alone, rates) for what, rates in found.items()]


def _last_of(run: Callable[[], float], seconds: float) -> list[float]:
    """The last rates of so many seconds of one run after the other."""
    deadline = monotonic() + seconds
    rates = [run() for _ in range(_LAST_RUNS)]
    while monotonic() < deadline:
        rates.append(run())
    return rates[-_LAST_RUNS:]


def _schedule(bench: Bench, peer: Peer, jobs: int) -> None:
    assert peer.schedule
    with psycopg.connect(bench.database_url, autocommit=True) as connection:
        connection.execute(peer.schedule, (jobs,))
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


@contextmanager
def _readers(bench: Bench, peer: Peer) -> Iterator[None]:
    assert peer.read
    statement = peer.read
    ended = threading.Event()

    def read() -> None:
        with psycopg.connect(bench.database_url) as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            while not ended.is_set():
                for _ in range(_LOOKS):
                    connection.execute(statement)
                    # Somebody who thinks in between: four that never pause would be a test of two cores.
                    if ended.wait(0.1):
                        break
                connection.rollback()

    readers = [threading.Thread(target=read) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        yield
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
