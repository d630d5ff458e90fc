"""Time from a job's end to the next one's start, in a queue that runs one job at a time.

python -m benchmarks.one_at_a_time [--quick] [--jobs 200] [--milliseconds 50]
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median, quantiles
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg

from benchmarks import alone, figures
from benchmarks.processes import command
from drain import queues, stage
from drain.workers import job

if TYPE_CHECKING:
    from drain.embedded import Services

_QUEUE = "single"
SIZES = {"jobs": (200, 60), "milliseconds": (50, 50)}
# The first deliveries have hashes, so the leader is not notified when they end.
_WARM_UP = 10
_COUNT = "SELECT count(*) FROM finished_jobs WHERE queue = 'single'"
_TIMES = """
SELECT extract(epoch FROM moved_at)::float8, extract(epoch FROM claimed_at)::float8,
    extract(epoch FROM finished_at)::float8
FROM finished_jobs WHERE queue = 'single' ORDER BY id OFFSET %s
"""


@job(name="benchmark.one_at_a_time", queue=_QUEUE)
def one_at_a_time(milliseconds: int) -> None:
    """Sleep for this long."""
    sleep(milliseconds / 1000)


def measure(started: Services, jobs: int, milliseconds: int) -> dict[str, list[float]]:
    """Measure each phase of a job, in seconds."""
    with psycopg.connect(started.database_url, autocommit=True) as connection:
        queues.set(connection, _QUEUE, running=1)
        with (
            command(started, "run", "--metrics-port", "0"),
            command(started, "work", _QUEUE, jobs="benchmarks.one_at_a_time"),
        ):
            for count, each in ((_WARM_UP, 50), (jobs, milliseconds)):
                with connection.transaction():
                    for _ in range(count):
                        stage(connection, one_at_a_time, [each])
                # Workers register within a second of the first jobs.
                sleep(1.5)
            _wait_until_finished(
                connection, jobs + _WARM_UP, patience_seconds=60 + 2 * jobs * milliseconds / 1000
            )
        times = connection.execute(_TIMES, (_WARM_UP,)).fetchall()
    return {
        "end to admission": [moved - ended for (_, _, ended), (moved, _, _) in pairwise(times)],
        "admission to claim": [claimed - moved for moved, claimed, _ in times],
        "claim to end": [ended - claimed for _, claimed, ended in times],
        "end to end": [after - before for (_, _, before), (_, _, after) in pairwise(times)],
    }


def _wait_until_finished(connection: psycopg.Connection, jobs: int, patience_seconds: float) -> None:
    deadline = monotonic() + patience_seconds
    while connection.execute(_COUNT).fetchall()[0][0] < jobs:
        if monotonic() > deadline:
            raise TimeoutError("the worker did not finish its jobs")
        sleep(0.1)


def section(started: Services, *, jobs: int, milliseconds: int) -> str:
    """Measure and return the figures as Markdown."""
    steps = measure(started, jobs, milliseconds)
    table = figures.table(
        ("step", "p50", "p95"),
        [(step, _ms(median(each)), _ms(quantiles(each, n=20)[-1])) for step, each in steps.items()],
    )
    return (
        f"## One job at a time\n\n{table}\n\n{jobs:,} jobs of {milliseconds} ms in a queue with `running=1`."
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


if __name__ == "__main__":
    alone.run("one_at_a_time", section, SIZES)
