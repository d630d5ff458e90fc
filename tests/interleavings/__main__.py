"""Runs schedules of a module: `python -m tests.interleavings delivery --schedules 100000`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from drain.database import schema
from drain.embedded import services
from tests.interleavings.modules import MODULES, Laboratory
from tests.mutants import tree
from tests.mutants.catalogue import AREAS

_FAILED = 3
_PROGRESS_SECONDS = 10
_PROCESSES = multiprocessing.get_context("fork")


class _Options(argparse.Namespace):
    module: str
    schedules: int
    seed: int
    processes: int
    shrink: int
    mutants: bool
    only: str


class _Ran(NamedTuple):
    """A schedule that a process has run, and its problem; no seed at the end of the process."""

    seed: int | None
    steps: int = 0
    problem: str | None = None
    shortest: Sequence[str] = ()


def main() -> int:
    """Print progress, and the shortest schedule of the first failure; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.interleavings", description=__doc__)
    parser.add_argument("module", choices=MODULES)
    parser.add_argument("--schedules", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first one (default: 0)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="at the same time (default: 1)")
    parser.add_argument("--shrink", type=int, default=300, metavar="N", help="runs to shrink (default: 300)")
    parser.add_argument("--mutants", action="store_true", help="how many schedules find each mutant, instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name contains it")
    options = parser.parse_args(namespace=_Options())
    return _try_mutants(options) if options.mutants else _run(options)


def _run(options: _Options) -> int:
    """Run seeds in processes, each with its own servers, until one fails."""
    ran: SimpleQueue[_Ran] = _PROCESSES.SimpleQueue()
    stop = _PROCESSES.Event()
    processes = [
        _PROCESSES.Process(target=_run_some, args=(options, number, ran, stop), daemon=True)
        for number in range(options.processes)
    ]
    for process in processes:
        process.start()
    began = reported_at = monotonic()
    done = steps = 0
    failed = None
    running = len(processes)
    while running:
        each = ran.get()
        if each.seed is None:
            running -= 1
            continue
        done += 1
        steps += each.steps
        if each.problem and failed is None:
            failed = each
            print(f"schedule {done}, seed {each.seed}: {each.problem}", flush=True)
            print(f"shortest of {each.steps} steps:", *each.shortest, sep="\n    ", flush=True)
        if failed is None and (done == options.schedules or monotonic() - reported_at > _PROGRESS_SECONDS):
            reported_at = monotonic()
            rate = done / (monotonic() - began)
            print(f"{done:,} schedules of {steps / done:.0f} steps, {rate:.1f} a second", flush=True)
    for process in processes:
        process.join()
    if failed is not None:
        return _FAILED
    return 0 if done == options.schedules else 1


def _run_some(options: _Options, number: int, ran: SimpleQueue[_Ran], stop: Event) -> None:
    # The leader warns of each fault.
    logging.disable(logging.CRITICAL)
    try:
        with _laboratory() as laboratory:
            for seed in range(options.seed + number, options.seed + options.schedules, options.processes):
                outcome = laboratory.run(options.module, seed)
                if stop.is_set():
                    return
                shortest: Sequence[str] = ()
                if outcome.problem:
                    stop.set()
                    shortest = laboratory.shrunk(options.module, seed, outcome, options.shrink).choices
                ran.put(_Ran(seed, len(outcome.choices), outcome.problem, shortest))
                if outcome.problem:
                    return
    finally:
        ran.put(_Ran(None))


@contextmanager
def _laboratory() -> Iterator[Laboratory]:
    with tempfile.TemporaryDirectory() as directory, services(durable=False) as servers:
        url = servers.postgres.url_of("postgres")
        schema.install(url)
        with closing(Laboratory(Path(directory), url, servers.redis_url)) as laboratory:
            yield laboratory


def _try_mutants(options: _Options) -> int:
    """Run the module in a copy of the tree for each of its mutants; return 1 if one is not found."""
    names = [name for name in MODULES[options.module].mutants if options.only in name]
    with ThreadPoolExecutor(options.processes) as pool:
        found = list(pool.map(partial(_try_mutant, options), names))
    return 0 if all(found) else 1


def _try_mutant(options: _Options, name: str) -> bool:
    (mutant,) = [mutant for area in AREAS.values() for mutant in area if mutant.name == name]
    command = (sys.executable, "-m", "tests.interleavings", options.module, "--shrink", "0")
    numbers = ("--schedules", str(options.schedules), "--seed", str(options.seed))
    with tree.copied() as root:
        mutant.apply(root)
        run = subprocess.run(
            (*command, *numbers),
            check=False,
            cwd=root,
            env=tree.environment(root),
            capture_output=True,
            text=True,
        )
    is_found = run.returncode == _FAILED
    lines = run.stdout.splitlines()
    found = [line for line in lines if line.startswith("schedule ")]
    survived = ["SURVIVED", *lines[-1:], *run.stderr.splitlines()[-1:]]
    print("\n  ".join([name, *(found if is_found else survived)]), flush=True)
    return is_found


if __name__ == "__main__":
    sys.exit(main())
