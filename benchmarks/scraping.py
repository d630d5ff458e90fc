"""`python -m benchmarks.scraping`: processor time of the leader's metrics, with jobs in 200 queues.

Three leaders take turns on the same idle system: without gauges, with gauges that are not read, and with gauges scraped
every 15 seconds. Processor time is compared, not wall-clock time, because other programs on the machine change it
little.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from benchmarks import alone, figures, rates
from benchmarks.processes import cpu_seconds, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drain.embedded import Services

# Full and short sizes.
SIZES = {"queues": (200, 20), "rounds": (3, 1), "seconds": (45, 3), "scrapes": (50, 5)}
_JOBS_OF_A_QUEUE = 20
_NAMES_OF_A_QUEUE = 5
_TAGS = 120
_SCRAPE_SECONDS = 15.0
# A leader first fills its caches and measures everything.
_WARM_UP_SECONDS = 7.0
_STAGE = """
INSERT INTO staged_jobs (job_name, queue, tag, scheduled_at)
SELECT 'shop.jobs.job_' || number / %(queues)s %% %(names)s, 'queue_' || number %% %(queues)s,
    'customer ' || number %% %(tags)s, now()
FROM generate_series(1, %(jobs)s) AS number
"""
_WITHOUT_GAUGES = "from drain.enqueuer.gauges import Gauges; Gauges.run_once = lambda *_: False; "
_MAIN = "from drain.__main__ import main; main()"


class Cost(NamedTuple):
    """Processor time of the leaders of one round.

    Attributes:
        idle: Fraction of one core, without gauges.
        gauges: The same, with gauges.
        scraped: The same, with gauges scraped every 15 seconds.
        scrape_seconds: Processor time of one scrape.
    """

    idle: float
    gauges: float
    scraped: float
    scrape_seconds: float


def section(started: Services, *, queues: int, rounds: int, seconds: float, scrapes: int) -> str:
    """Measure and return the figures as Markdown."""
    figures.say(f"{queues} queues, {rounds} rounds")
    values = {"names": _NAMES_OF_A_QUEUE, "queues": queues, "tags": _TAGS, "jobs": queues * _JOBS_OF_A_QUEUE}
    costs, size = [], 0

    def measure(every: float = 0.0, scrapes: int = 0, *, gauges: bool = True) -> tuple[float, float, int]:
        rates.refill(started, 0)
        with psycopg.connect(started.database_url, autocommit=True) as connection:
            connection.execute(_STAGE, values)
        return _measure(started, seconds, every, scrapes, gauges=gauges)

    for _ in range(rounds):
        idle, _, _ = measure(gauges=False)
        gauges, scrape_seconds, size = measure(scrapes=scrapes)
        scraped, _, _ = measure(_SCRAPE_SECONDS)
        costs.append(Cost(idle, gauges, scraped, scrape_seconds))
        figures.say(
            f"  {idle:.2%}, {gauges:.2%} with gauges, {scraped:.2%} scraped; a scrape {scrape_seconds:.4f} s"
        )
    rows = [
        ["leader without gauges", *_spread([cost.idle for cost in costs])],
        ["gauges", *_spread([cost.gauges - cost.idle for cost in costs])],
        ["gauges, and a scrape every 15 s", *_spread([cost.scraped - cost.idle for cost in costs])],
    ]
    scrape = statistics.median(cost.scrape_seconds for cost in costs)
    return (
        "## Metrics of the leader\n\n"
        f"Processor time as a fraction of one core, with {_JOBS_OF_A_QUEUE} jobs of {_NAMES_OF_A_QUEUE} names in each "
        f"of {queues} queues, and {_TAGS} tags. The leader has drained them and is otherwise idle. The leaders take "
        f"turns for {rounds} rounds of {seconds:g} s each. A scrape of {size / 1000:,.0f} kB takes "
        f"{1000 * scrape:.1f} ms of processor time.\n\n"
        + figures.table(["", "median", "lowest", "highest"], rows)
    )


def _measure(
    started: Services, seconds: float, every: float, scrapes: int, *, gauges: bool
) -> tuple[float, float, int]:
    """Run a leader; returns the fraction of a core that it uses, and the seconds and bytes of one scrape."""
    with _leader(started, gauges=gauges) as (pid, port):
        sleep(_WARM_UP_SECONDS)
        before, began = cpu_seconds(pid), monotonic()
        while (left := began + seconds - monotonic()) > 0:
            if every:
                _scrape(port)
            sleep(min(left, every or left))
        used = (cpu_seconds(pid) - before) / (monotonic() - began)
        before, size = cpu_seconds(pid), 0
        for _ in range(scrapes):
            size = _scrape(port)
        return used, (cpu_seconds(pid) - before) / max(1, scrapes), size


@contextmanager
def _leader(started: Services, *, gauges: bool) -> Iterator[tuple[int, int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = ("" if gauges else _WITHOUT_GAUGES) + _MAIN
    command = [sys.executable, "-c", program, "run", "--metrics-port", str(port), "--depth", "0"]
    process = subprocess.Popen(command, env=environment(started), stderr=subprocess.DEVNULL)
    try:
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(timeout=20)


def _scrape(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return len(answer.read())


def _spread(values: list[float]) -> list[str]:
    return [f"{value:.2%}" for value in (statistics.median(values), min(values), max(values))]


if __name__ == "__main__":
    alone.run("scraping", section, SIZES)
