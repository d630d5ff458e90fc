"""The work, the same for all: each function is the body of one job.

Where things are comes from the environment, which workers inherit: BENCH_DIRECTORY, BENCH_DATABASE_URL,
BENCH_REDIS_URL, BENCH_SPINS.
"""

from __future__ import annotations

import os
import struct
import time
from functools import cache
from pathlib import Path

from benchmarks.peers.job_counter import JobCounter

WAIT_SECONDS = 0.01
ACCOUNTS = 10_000
UPDATE = "UPDATE accounts SET balance = balance + 1 WHERE id = {}"
MAKE_ACCOUNTS = (
    "CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL DEFAULT 0) WITH (fillfactor = 50); "
    f"INSERT INTO accounts (id) SELECT generate_series(0, {ACCOUNTS - 1})"
)
START = struct.Struct("=dd")
COUNTER, STARTS, COMMITS = "ticks", "starts", "commits"


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
    # Appended in one write each, so that any number of processes can share the file.
    return os.open(directory() / STARTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def done() -> None:
    """A job has been done."""
    _ticks().tick()


def started(number: int) -> None:
    """The job that does nothing but tell when it began."""
    os.write(_starts(), START.pack(number, time.monotonic()))
    _ticks().tick()


def spin(times: int | None = None) -> None:
    """A millisecond of processor time, as a number of turns: a clock would count what other threads use."""
    left = int(os.environ["BENCH_SPINS"]) if times is None else times
    while left:
        left -= 1


def spins_of_a_millisecond() -> int:
    """How many turns `spin` makes in a millisecond on this machine."""
    turns = 200_000
    best = float("inf")
    for _ in range(50):
        began = time.process_time()
        spin(turns)
        best = min(best, time.process_time() - began)
    return max(1, round(turns * 0.001 / best))
