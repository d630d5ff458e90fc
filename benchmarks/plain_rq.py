"""Rates of plain RQ jobs that do nothing, on RQ's own workers and on `drain work`.

    python -m benchmarks.plain_rq

A worker's rate is that of a burst, from the run of one job to the run of the next, which excludes the worker's start.
The workers take turns, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import redis
from rq import Queue

from benchmarks import figures, servers, stock_plain

if TYPE_CHECKING:
    from drain.embedded import Services

ROOT = Path(__file__).parents[1]
RQ = str(Path(sys.executable).with_name("rq"))
DRAIN = ("-c", "from drain.__main__ import main; main()", "work", "default", "--burst")
WORKERS: dict[str, tuple[str, ...]] = {
    "`rq worker`": (RQ, "worker", "--burst"),
    "`drain work --plain fork`": (*DRAIN, "--plain", "fork"),
    "`rq worker --worker-class rq.SimpleWorker`": (
        *(RQ, "worker", "--burst"),
        *("--worker-class", "rq.SimpleWorker"),
    ),
    "`drain work --plain inline`": (*DRAIN, "--plain", "inline"),
}
# Jobs at the start of a burst that do not count, because they fill caches.
WARM_UP = 5


def main() -> None:
    """Measure and print the section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_rq", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each figure")
    parser.add_argument("--jobs", type=int, default=200, help="jobs of one burst")
    arguments = parser.parse_args()
    with servers.running(servers.EMBEDDED) as started:
        print("\n" + section(started, arguments.rounds, arguments.jobs))


def section(started: Services, rounds: int, jobs: int) -> str:
    """Measure and return the section of RESULTS.md."""
    found = measure(started, rounds, jobs)
    rows = [(name, f"{_spread(rates)}") for name, rates in found.items()]
    return "\n\n".join(
        [
            "# Plain RQ jobs",
            f"Python {platform.python_version()}, rq {version('rq')}, {os.cpu_count()} cores.",
            _how(rounds, jobs),
            figures.table(("worker", "jobs a second"), rows),
        ]
    )


def _how(rounds: int, jobs: int) -> str:
    return (
        f"Jobs a second in one process, with jobs that do nothing: bursts of {jobs} without the first {WARM_UP}. "
        f"The workers take turns for {rounds} rounds; the median of the rounds, with the lowest and the highest."
    )


def measure(running: Services, rounds: int, jobs: int) -> dict[str, list[float]]:
    """Measure jobs a second of each worker, one figure per round."""
    found: dict[str, list[float]] = {name: [] for name in WORKERS}
    for number in range(rounds):
        names = list(WORKERS) if number % 2 else list(reversed(WORKERS))
        for name in names:
            found[name].append(_burst(running, WORKERS[name], jobs))
        figures.say("  " + ", ".join(f"{rates[-1]:.0f}" for rates in found.values()))
    return found


def _burst(running: Services, words: tuple[str, ...], jobs: int) -> float:
    with redis.Redis.from_url(running.redis_url) as client:
        client.flushdb()
        queue = Queue("default", connection=client)
        queue.enqueue_many([Queue.prepare_data(stock_plain.plain) for _ in range(jobs)])
    with TemporaryDirectory() as directory:
        times = Path(directory) / "times"
        environment = os.environ | {
            "DRAIN_DATABASE_URL": running.database_url,
            "DRAIN_REDIS_URL": running.redis_url,
            "RQ_REDIS_URL": running.redis_url,
            "DRAIN_JOBS": stock_plain.__name__,
            "PYTHONPATH": str(ROOT),
            stock_plain.TIMES: str(times),
        }
        subprocess.run(
            [sys.executable, *words],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        ran = [float(line) for line in times.read_text().split()]
    if len(ran) != jobs:
        raise RuntimeError(f"{len(ran)} of {jobs} jobs have run")
    return 1 / statistics.median(later - earlier for earlier, later in pairwise(ran[WARM_UP:]))


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} – {max(values):.0f})"


if __name__ == "__main__":
    main()
