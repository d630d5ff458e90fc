"""Forecasts of real runs: how far they are from the time that the jobs then take.

    python -m benchmarks.forecasts [--rounds 3] [--jobs 400]

For each mix real queues are filled, a real leader and real workers run them, and `drain forecast` is asked as soon as
the jobs have been staged. What is measured is the time until the last of them has finished.
"""

from __future__ import annotations

import argparse
import random
import threading
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from statistics import median
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks import figures, machine, processes, servers
from benchmarks.forecast_jobs import nap
from drain import queues, stage, stage_many, wire
from drain.contrib.forecast.inputs import Added
from drain.contrib.forecast.prediction import predict
from drain.contrib.forecast.reading import Question, read
from drain.database import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drain.contrib.forecast.prediction import Prediction
    from drain.embedded import Services

_JOBS = "benchmarks.forecast_jobs"
# More than count as those of an application's own transaction: they are no arrivals.
_WARM = 150
_EMPTY = """
SELECT FROM staged_jobs WHERE queue = 'asked' UNION ALL SELECT FROM inflight_jobs WHERE queue = 'asked' LIMIT 1
"""


@dataclass(frozen=True)
class Mix:
    """Mix of jobs and workers.

    Attributes:
        name: What it is, for the table.
        milliseconds: Run time of a job.
        workers: Words of `drain work`, after the queues.
        queues: Queues of the workers, in order.
        rules: Rules of the queue that is asked about.
        others: Jobs that come to the queue `other` in a second.
        backfill: The jobs are forecast before they are staged.
    """

    name: str
    milliseconds: Callable[[random.Random], float]
    workers: tuple[str, ...] = ("--processes", "2")
    queues: tuple[str, ...] = ("asked",)
    rules: dict[str, Any] | None = None
    others: float = 0.0
    backfill: bool = False


def _skewed(source: random.Random) -> float:
    return 1000.0 if source.random() < 0.02 else source.lognormvariate(3.0, 0.8)


MIXES = (
    Mix("50 ms each, 2 processes", lambda _: 50.0),
    Mix("skewed: 20 ms at the median, 1 s for one in 50", _skewed),
    Mix(
        "50 ms, behind a queue of 10 jobs a second",
        lambda _: 50.0,
        queues=("other", "asked"),
        others=10.0,
        workers=("--processes", "1"),
    ),
    Mix("50 ms, running=1, 2 processes", lambda _: 50.0, rules={"running": 1}),
    Mix("5 ms, rate=40/s", lambda _: 5.0, rules={"rate": "40/s"}),
    Mix("50 ms, one process with 4 threads", lambda _: 50.0, workers=("--threads", "4")),
    Mix("50 ms, a backfill before it is staged", lambda _: 50.0, backfill=True),
)


@dataclass(frozen=True)
class Measured:
    """A forecast, and what came."""

    predicted: Prediction
    seconds: float

    @property
    def error(self) -> float:
        """Distance of the median from what came, as a part of that."""
        return (self.predicted.ends.median - self.seconds) / self.seconds

    @property
    def is_within(self) -> bool:
        """What came lies in the range."""
        ends = self.predicted.ends
        return ends.low <= self.seconds <= ends.high


def measure(started: Services, mix: Mix, jobs: int, source: random.Random) -> Measured:
    """Run one mix on empty tables."""
    _clear(started)
    with ExitStack() as stack:
        stack.enter_context(processes.command(started, "run", "--metrics-port", "0"))
        stack.enter_context(processes.command(started, "work", *mix.queues, *mix.workers, jobs=_JOBS))
        connection = stack.enter_context(psycopg.connect(started.database_url, autocommit=True))
        if mix.rules:
            with connection.transaction():
                queues.set(connection, "asked", **mix.rules)
        if mix.others:
            stack.enter_context(_coming(started, mix.others, source))
        _stage(connection, mix, _WARM, source)
        _wait(connection)
        if not mix.backfill:
            _stage(connection, mix, jobs, source)
        predicted = _predict(started, Added(jobs, nap.job_name) if mix.backfill else None)
        if mix.backfill:
            _stage(connection, mix, jobs, source)
        began = monotonic()
        _wait(connection)
        return Measured(predicted, monotonic() - began)


def _predict(started: Services, added: Added | None) -> Prediction:
    with (
        closing(wire.Producer(started.redis_url, "bench")) as redis,
        postgres.connect(started.database_url, "benchmark") as connection,
    ):
        return predict(read(connection, redis, Question(queue="asked", added=added)))


def _stage(connection: psycopg.Connection, mix: Mix, jobs: int, source: random.Random) -> None:
    with connection.transaction():
        stage_many(connection, nap, [(mix.milliseconds(source),) for _ in range(jobs)], queue="asked")


def _wait(connection: psycopg.Connection) -> None:
    while connection.execute(_EMPTY).fetchall():
        sleep(0.01)


@contextmanager
def _coming(started: Services, per_second: float, source: random.Random) -> Iterator[None]:
    """Let jobs of 20 ms come to another queue, at random, while the block runs."""
    ended = threading.Event()
    chance = random.Random(source.random())

    def come() -> None:
        with psycopg.connect(started.database_url, autocommit=True) as connection:
            while not ended.wait(chance.expovariate(per_second)):
                stage(connection, nap, [20.0], queue="other")

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _clear(started: Services) -> None:
    with psycopg.connect(started.database_url, autocommit=True) as connection:
        connection.execute("TRUNCATE staged_jobs, inflight_jobs, finished_jobs, dead_jobs, queues")


def section(started: Services, rounds: int, jobs: int) -> str:
    """Measure all mixes; a section of RESULTS.md."""
    source = random.Random(1)
    rows = []
    for mix in MIXES:
        found = [measure(started, mix, jobs, source) for _ in range(rounds)]
        errors = sorted(100 * each.error for each in found)
        row = [
            mix.name,
            f"{median(each.seconds for each in found):.1f}",
            f"{median(each.predicted.ends.median for each in found):.1f}",
            f"{median(errors):+.0f} ({errors[0]:+.0f} – {errors[-1]:+.0f})",
            f"{sum(each.is_within for each in found)} of {rounds}",
        ]
        figures.say(" | ".join(row))
        rows.append(row)
    told = (
        f"{jobs} jobs that sleep, forecast as soon as they were staged, or before; the run times are those of {_WARM} "
        f"jobs before. Medians of {rounds} runs; the error is the forecast's, in hundredths of the real time."
    )
    header = ["mix", "seconds, real", "seconds, forecast", "error, %", "within the range of nine in ten"]
    return "\n\n".join(["## Forecasts of real runs", told, figures.table(header, rows)])


def main() -> None:
    """Measure, and print the section."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=400)
    given = parser.parse_args()
    with servers.running(servers.EMBEDDED) as started:
        figures.say(machine.line(started, servers.EMBEDDED))
        figures.say(section(started, given.rounds, given.jobs))


if __name__ == "__main__":
    main()
