"""The work, the same for all: each function is the body of one job.

Configuration comes from the environment, which workers inherit: BENCH_DIRECTORY, BENCH_DATABASE_URL, BENCH_REDIS_URL,
BENCH_SPINS.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.job_counter import JobCounter

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_SECONDS = 0.01
ACCOUNTS = 10_000
UPDATE = "UPDATE accounts SET balance = balance + 1 WHERE id = {}"
MAKE_ACCOUNTS = (
    "CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL DEFAULT 0) WITH (fillfactor = 50); "
    f"INSERT INTO accounts (id) SELECT generate_series(0, {ACCOUNTS - 1})"
)
# Row that the application commits together with a job, or before it pushes one.
MAKE_ORDERS = "CREATE TABLE orders (number integer PRIMARY KEY)"
ORDER = "INSERT INTO orders (number) VALUES ({})"
START = struct.Struct("=dd")
COUNTER, STARTS, COMMITS, DIED = "ticks", "starts", "commits", "died-"
# When a job kills its worker: inside its transaction, or after the commit.
BEFORE, AFTER = "before", "after"


def directory() -> Path:
    return Path(os.environ["BENCH_DIRECTORY"])


def database_url() -> str:
    return os.environ["BENCH_DATABASE_URL"]


def redis_url() -> str:
    return os.environ["BENCH_REDIS_URL"]


@cache
def _ticks() -> JobCounter:
    return JobCounter(directory() / COUNTER)


@cache
def _starts() -> int:
    # Each entry is appended in one write, so that any number of processes can share the file.
    return os.open(directory() / STARTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def done() -> None:
    """Count a finished job."""
    _ticks().tick()


def die_once(moment: str) -> None:
    """Kill this process by SIGKILL, unless a job has already done so at this moment."""
    try:
        os.close(os.open(directory() / f"{DIED}{moment}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def started(number: int) -> None:
    """Record the start time of a job that does nothing else."""
    os.write(_starts(), START.pack(number, time.monotonic()))
    _ticks().tick()


def committed_before(push: Callable[[int], object]) -> Callable[[int], float]:
    """Make a producer for a queue outside Postgres: it commits the application's row, then pushes the job.

    Returns:
        A function that returns when its commit returned, by time.monotonic().
    """
    import psycopg

    connection = psycopg.connect(database_url(), autocommit=True)

    def commit(number: int) -> float:
        connection.execute(ORDER.format("%s"), (number,))
        at = time.monotonic()
        push(number)
        return at

    return commit


def update_and_die(moment: str) -> None:
    """Update the first account in its own transaction; the first worker to do so is killed at `moment`."""
    import psycopg

    with psycopg.connect(database_url()) as connection:
        connection.execute(UPDATE.format("%s"), (0,))
        if moment == BEFORE:
            die_once(moment)
    if moment == AFTER:
        die_once(moment)


def spin(times: int | None = None) -> None:
    """Use a millisecond of processor time, as a number of turns: a clock would count other threads' time."""
    left = int(os.environ["BENCH_SPINS"]) if times is None else times
    while left:
        left -= 1


def spins_of_a_millisecond() -> int:
    """Measure how many turns `spin` makes in a millisecond on this machine."""
    turns = 200_000
    best = float("inf")
    for _ in range(50):
        began = time.process_time()
        spin(turns)
        best = min(best, time.process_time() - began)
    return max(1, round(turns * 0.001 / best))
