"""Redis memory and list length while millions of rows are staged, and the cost of a FLUSHALL.

    python -m benchmarks.depths [--quick] [--rows 10000000] [--seconds 20] [--rounds 3]

Runs `drain run` and `drain work` with two processes and the default depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg
import redis

from benchmarks import alone, figures, rates
from benchmarks.processes import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drain.embedded import Services

SIZES = {"rows": (10_000_000, 300_000), "seconds": (20.0, 5.0), "rounds": (3, 1)}

_JOBS = "benchmarks.admitted_jobs"
_LIST = "rq:queue:default"
_LOOK_SECONDS = 0.02
_ROWS_AT_A_TIME = 1_000_000
_STAGE = """
INSERT INTO staged_jobs (job_name) SELECT 'benchmarks.admitted_jobs.nothing' FROM generate_series(1, %s)
"""
_FINISHED = "SELECT count(*) FROM finished_jobs"
_IN_FLIGHT = "SELECT count(*) FROM inflight_jobs"


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one round: list lengths, Redis memory in MB, and rows in flight at the FLUSHALL."""

    lengths: Sequence[int]
    megabytes: Sequence[float]
    per_second: float
    in_flight: int

    def __str__(self) -> str:
        return (
            f"{self.per_second:,.0f} jobs a second; list: median {median(self.lengths):,.0f}, at most "
            f"{max(self.lengths):,}; Redis: {min(self.megabytes):.1f} to {max(self.megabytes):.1f} MB; "
            f"in flight at a FLUSHALL: {self.in_flight:,}"
        )


def look(started: Services, seconds: float) -> Figures:
    """Work for `seconds` while sampling Redis."""
    lengths: list[int] = []
    megabytes: list[float] = []
    with (
        psycopg.connect(started.database_url, autocommit=True) as connection,
        redis.Redis.from_url(started.redis_url) as client,
        # Each round after the first starts with a Redis that has lost its data.
        command(started, "run", "--metrics-port", "0", "--thin-queues", "*"),
        command(started, "work", "default", "--processes", "2", jobs=_JOBS),
    ):
        before = _number(connection, _FINISHED)
        while _number(connection, _FINISHED) == before:
            sleep(_LOOK_SECONDS)
        began, before = monotonic(), _number(connection, _FINISHED)
        while monotonic() - began < seconds:
            sleep(_LOOK_SECONDS)
            lengths.append(client.llen(_LIST))
            megabytes.append(client.info("memory")["used_memory"] / 1e6)
        per_second = (_number(connection, _FINISHED) - before) / (monotonic() - began)
        in_flight = _number(connection, _IN_FLIGHT)
        client.flushall()
    return Figures(lengths, megabytes, per_second, in_flight)


def section(started: Services, *, rows: int, seconds: float, rounds: int) -> str:
    """Measure and return the figures as Markdown."""
    figures.say(f"Redis while {rows:,} rows are staged")
    rates.refill(started, 0)
    with psycopg.connect(started.database_url, autocommit=True) as connection:
        for first in range(0, rows, _ROWS_AT_A_TIME):
            connection.execute(_STAGE, (min(_ROWS_AT_A_TIME, rows - first),))
        connection.execute("VACUUM ANALYZE staged_jobs")
        found = []
        for _ in range(rounds):
            found.append(look(started, seconds))
            figures.say(f"  {found[-1]}")
        # Later measurements must not drain these rows.
        connection.execute("TRUNCATE staged_jobs")
    megabytes = [each for one in found for each in one.megabytes]
    return (
        f"## Redis while {rows:,} rows are staged\n\nA worker with two processes ran "
        f"{median(one.per_second for one in found):,.0f} jobs a second. The list held a median of "
        f"{median(length for one in found for length in one.lengths):,.0f} ids and at most "
        f"{max(max(one.lengths) for one in found):,}; Redis used {min(megabytes):.1f} to {max(megabytes):.1f} MB. A "
        f"FLUSHALL at the end of each of {rounds} rounds caused at most "
        f"{', '.join(f'{one.in_flight:,}' for one in found)} repeated pushes."
    )


def _number(connection: psycopg.Connection, statement: str) -> int:
    ((number,),) = connection.execute(statement).fetchall()
    return int(number)


if __name__ == "__main__":
    alone.run("depths", section, SIZES)
