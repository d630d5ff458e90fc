"""Memory of Redis and length of its list while millions of rows are staged, and what a FLUSHALL costs then.

    python -m benchmarks.depths [--rows 10000000] [--seconds 20] [--rounds 3]

`drain run` and `drain work` with two processes, with the default depth. For comparison `--depth 0` gives no bound.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg
import redis

from benchmarks import figures
from benchmarks.processes import command
from drain.database import schema
from drain.embedded import services

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drain.embedded import Services

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
    """Of one round: lengths of the list, memory of Redis in megabytes, and rows in flight at the time of a FLUSHALL."""

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


def look(started: Services, seconds: float, *options: str) -> Figures:
    """Work for so long, and look at Redis meanwhile."""
    lengths: list[int] = []
    megabytes: list[float] = []
    with (
        psycopg.connect(started.database_url, autocommit=True) as connection,
        redis.Redis.from_url(started.redis_url) as client,
        command(started, "run", "--metrics-port", "0", *options),
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


def _number(connection: psycopg.Connection, statement: str) -> int:
    ((number,),) = connection.execute(statement).fetchall()
    return int(number)


def main() -> None:
    """Measure, and print each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int)
    given = parser.parse_args()
    options = [] if given.depth is None else ["--depth", str(given.depth)]
    with services(durable=False) as started:
        schema.install(started.database_url)
        with psycopg.connect(started.database_url, autocommit=True) as connection:
            for first in range(0, given.rows, _ROWS_AT_A_TIME):
                connection.execute(_STAGE, (min(_ROWS_AT_A_TIME, given.rows - first),))
            connection.execute("VACUUM ANALYZE staged_jobs")
        for _ in range(given.rounds):
            figures.say(f"{given.rows:,} rows staged: {look(started, given.seconds, *options)}")


if __name__ == "__main__":
    main()
