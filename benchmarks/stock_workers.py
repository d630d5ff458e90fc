"""Cost of a job that does nothing on RQ's own workers: a plain RQ job, and a job of job-drain.

    python -m benchmarks.stock_workers

A job's cost is the time from its run to the run of the next one in a burst, which excludes the worker's start. Bursts
of both kinds of job take turns on each kind of worker, so that other load on the machine affects both alike.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import redis
from rq import Queue

from benchmarks import figures, rates, servers, stock_jobs, stock_plain
from drain import stage_many
from drain.embedded import Services

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[1]
RQ = str(Path(sys.executable).with_name("rq"))
CONFIG = ("--config", "drain.rq_settings")
# Kind of worker, its options, and the upper bound of the cost of a job of ours, as a multiple of a plain job's.
Kinds = Mapping[str, tuple[tuple[str, ...], float]]
KINDS: Kinds = {
    "`rq worker --config drain.rq_settings`": (CONFIG, 2.0),
    "`rq worker`": ((), 4.0),
    "`rq worker --worker-class rq.SimpleWorker`": (("--worker-class", "rq.SimpleWorker"), 1.5),
}
# Modules that the parent process loads, so that forks inherit both kinds of job alike.
MODULES = f"{stock_jobs.__name__},{stock_plain.__name__}"
# Jobs at the start of a burst that do not count, because they fill caches.
WARM_UP = 5
IMPORTS = ("from drain import job", "from drain.workers import job", "import workers.entry")
_BASE = "import rq, psycopg"


def main() -> None:
    """Measure on both kinds of servers and print the section, which `make bench` writes."""
    arguments = _arguments()
    print("\n" + section(arguments.rounds, arguments.jobs, dict(arguments.setting)))


def section(rounds: int, jobs: int, settings: dict[str, str] | None = None) -> str:
    """Measure and return the section of RESULTS.md."""
    tables = [_on(services, rounds, jobs) for _, services in servers.of_both_kinds(settings)]
    return "\n\n".join(
        [
            "# RQ's own workers, unmodified",
            f"Python {platform.python_version()}, rq {version('rq')}, {os.cpu_count()} cores.",
            _how(rounds, jobs),
            *tables,
            _imports(rounds * 3),
        ]
    )


def _how(rounds: int, jobs: int) -> str:
    return (
        "Milliseconds from the run of a job that does nothing to the run of the next one: the median of a burst of "
        f"{jobs} jobs without the first {WARM_UP}. The workers and both kinds of job take turns for {rounds} rounds; "
        "the median of the rounds, with the lowest and the highest. Ratios are taken round by round."
    )


class Costs(NamedTuple):
    """Milliseconds per job of both kinds, one figure per round."""

    plain: list[float]
    ours: list[float]


def measure(services: Services, rounds: int, jobs: int, kinds: Kinds = KINDS) -> dict[str, Costs]:
    """Measure the cost of both kinds of job on each kind of worker."""
    found = {name: Costs([], []) for name in kinds}
    for number in range(rounds):
        for name, (options, _) in kinds.items():
            ways = [(found[name].plain, _push_plain), (found[name].ours, _push_ours)]
            for figures_, push in ways if number % 2 else reversed(ways):
                figures_.append(_burst(services, options, jobs, push))
        figures.say(
            "  " + ", ".join(f"{costs.plain[-1]:.1f} and {costs.ours[-1]:.1f}" for costs in found.values())
        )
    return found


def _on(services: Services, rounds: int, jobs: int) -> str:
    title = servers.title(services)
    figures.say(title)
    rows = [
        (
            name,
            _spread(costs.plain),
            _spread(costs.ours),
            figures.ratio(costs.ours, costs.plain, 2),
            f"{KINDS[name][1]:g}",
        )
        for name, costs in measure(services, rounds, jobs).items()
    ]
    table = figures.table(("worker", "RQ's own job, ms", "ours, ms", "ratio", "at most"), rows)
    return f"## {title}\n\n{table}"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} – {max(values):.1f})"


def _burst(
    services: Services, options: Sequence[str], jobs: int, push: Callable[[Services, int], None]
) -> float:
    """Measure the milliseconds per job."""
    rates.refill(services, 0)
    push(services, jobs)
    with TemporaryDirectory() as directory:
        times = Path(directory) / "times"
        environment = os.environ | {
            "DRAIN_DATABASE_URL": services.database_url,
            "DRAIN_JOBS": MODULES,
            "PYTHONPATH": str(ROOT),
            stock_plain.TIMES: str(times),
        }
        words = [RQ, "worker", "-u", services.redis_url, "--burst", *options]
        subprocess.run(
            words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
        )
        ran = [float(line) for line in times.read_text().split()]
    if len(ran) != jobs:
        raise RuntimeError(f"{len(ran)} of {jobs} jobs have run")
    return statistics.median(later - earlier for earlier, later in pairwise(ran[WARM_UP:])) * 1000


def _push_plain(services: Services, jobs: int) -> None:
    with redis.Redis.from_url(services.redis_url) as client:
        queue = Queue("default", connection=client)
        queue.enqueue_many([Queue.prepare_data(stock_plain.plain) for _ in range(jobs)])


def _push_ours(services: Services, jobs: int) -> None:
    with psycopg.connect(services.database_url) as connection:
        stage_many(connection, stock_jobs.ours, [()] * jobs)
    rates.moved_and_pushed(services, jobs)


def _imports(rounds: int) -> str:
    base: list[float] = []
    more: dict[str, list[float]] = {statement: [] for statement in IMPORTS}
    for _ in range(rounds):
        base.append(_import_ms(_BASE))
        for statement, values in more.items():
            values.append(_import_ms(f"{_BASE}; {statement}") - base[-1])
    rows = [
        (f"`{statement}`", f"{statistics.median(values):.0f}", f"{min(values):.0f} – {max(values):.0f}", "60")
        for statement, values in more.items()
    ]
    table = figures.table(("import", "ms more", "lowest – highest", "at most"), rows)
    return (
        f"## Imports\n\nMilliseconds that a new interpreter takes in addition to `{_BASE}`, which takes "
        f"{statistics.median(base):.0f}, including the interpreter's start.\n\n{table}"
    )


def _import_ms(statement: str) -> float:
    began = perf_counter()
    subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
    return (perf_counter() - began) * 1000


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stock_workers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each figure")
    parser.add_argument("--jobs", type=int, default=100, help="jobs of one burst")
    parser.add_argument(
        "--setting",
        type=lambda text: tuple(text.split("=", 1)),
        action="append",
        default=[],
        help="setting of the PostgreSQL servers, such as jit=off",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
