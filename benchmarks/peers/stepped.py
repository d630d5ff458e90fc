"""Jobs of steps, the same for all, and a program: `python -m benchmarks.peers.stepped APP run SLOT` or `cost STEPS`."""

from __future__ import annotations

import os
import sys
import uuid
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING

import psycopg

from benchmarks.peers import processes, work

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 20
LEASE_SECONDS = 2
_WARM = 20
MAKE = """
CREATE TABLE effects (job integer, step integer, run uuid);
CREATE TABLE ends (job integer PRIMARY KEY);
"""
EFFECT = "INSERT INTO effects VALUES ({}, {}, {})"


def new_run() -> str:
    """Generate a name for one execution of a job."""
    return str(uuid.uuid4())


def ended(job: int) -> None:
    """Record that a job has ended."""
    with psycopg.connect(work.database_url(), autocommit=True) as connection:
        connection.execute("INSERT INTO ends VALUES (%s) ON CONFLICT DO NOTHING", (job,))


def time_each(title: str, steps: int, act: Callable[[int], object]) -> None:
    """Print title, p50 and p99 in ms, calls a second, and calls per second of processor time including PostgreSQL's."""
    for number in range(_WARM):
        act(number)
    taken = []
    with psycopg.connect(work.database_url(), autocommit=True) as connection:
        backend = f"/proc/{connection.info.backend_pid}/stat"
        server = int(Path(backend).read_text(encoding="ascii").rpartition(")")[2].split()[1])
        before = processes.cpu_seconds([os.getpid(), server])
        for number in range(_WARM, _WARM + steps):
            began = perf_counter()
            act(number)
            taken.append(perf_counter() - began)
        used = processes.cpu_seconds([os.getpid(), server]) - before
    p50, p99 = 1000 * median(taken), 1000 * quantiles(taken, n=100)[98]
    print(title, p50, p99, steps / sum(taken), steps / used, sep="\t", flush=True)


def main(app: str, act: str, value: str) -> None:
    """Work as one process of a peer, or time its steps."""
    module = import_module(f"benchmarks.peers.apps.{app}")
    if act == "cost":
        module.cost(int(value))
    else:
        module.run(value)


if __name__ == "__main__":
    main(*sys.argv[1:])
