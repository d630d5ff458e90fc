"""Runs schedules of a module: `python -m tests.interleavings delivery --schedules 100000`."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

from drain.database import schema
from drain.embedded import services
from tests.interleavings.modules import MODULES, Laboratory
from tests.mutants import tree
from tests.mutants.catalogue import AREAS

_FAILED = 3
_PROGRESS_SECONDS = 10


def main() -> int:
    """Print progress, and the shortest schedule of the first failure; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.interleavings", description=__doc__)
    parser.add_argument("module", choices=MODULES)
    parser.add_argument("--schedules", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first one (default: 0)")
    parser.add_argument("--mutants", action="store_true", help="how many schedules find each mutant, instead")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name contains it")
    options = parser.parse_args()
    if options.mutants:
        return _try_mutants(options.module, options.schedules, options.seed, options.only)
    return _run(options.module, options.schedules, options.seed)


def _run(module: str, schedules: int, first: int) -> int:
    # The leader warns of each fault.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory, services(durable=False) as servers:
        url = servers.postgres.url_of("postgres")
        schema.install(url)
        laboratory = Laboratory(Path(directory), url, servers.redis_url)
        began = reported_at = monotonic()
        steps = 0
        for seed in range(first, first + schedules):
            outcome = laboratory.run(module, seed)
            steps += len(outcome.choices)
            done = seed - first + 1
            if outcome.problem:
                print(f"schedule {done}, seed {seed}: {outcome.problem}", flush=True)
                shortest = laboratory.shrunk(module, seed, outcome)
                print(f"shortest of {len(outcome.choices)} steps:", *shortest.choices, sep="\n    ")
                return _FAILED
            if done == schedules or monotonic() - reported_at > _PROGRESS_SECONDS:
                reported_at = monotonic()
                rate = done / (monotonic() - began)
                print(f"{done:,} schedules of {steps / done:.0f} steps, {rate:.1f} a second", flush=True)
    return 0


def _try_mutants(module: str, schedules: int, seed: int, only: str) -> int:
    """Run the module in a copy of the tree for each of its mutants; return 1 if one is not found."""
    survived = 0
    mutants = {mutant.name: mutant for area in AREAS.values() for mutant in area}
    for name in MODULES[module].mutants:
        if only in name:
            with tree.copied() as root:
                mutants[name].apply(root)
                command = (sys.executable, "-m", "tests.interleavings", module)
                numbers = ("--schedules", str(schedules), "--seed", str(seed))
                run = subprocess.run(
                    (*command, *numbers),
                    check=False,
                    cwd=root,
                    env=tree.environment(root),
                    capture_output=True,
                    text=True,
                )
            is_found = run.returncode == _FAILED
            survived += not is_found
            lines = run.stdout.splitlines() + run.stderr.splitlines()[-1:]
            print(name, *(lines if is_found else ["SURVIVED", *lines[-1:]]), sep="\n  ", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
