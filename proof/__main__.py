"""Runs all scenarios and mutants: `python -m proof`; `--accept` after a look at changed statements."""

from __future__ import annotations

import argparse
import sys
from time import monotonic

from proof import fingerprints
from proof.checker import Result, Scenario, explore
from proof.module import Module
from proof.modules import MODULES


def main() -> int:
    """Print a line for each scenario and mutant; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("--accept", action="store_true", help="accept the SQL as modelled, and exit")
    parser.add_argument("--module", choices=[module.name for module in MODULES], help="this module alone")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="scenarios and mutants whose name contains it"
    )
    options = parser.parse_args()
    if options.accept:
        fingerprints.accept()
        return 0
    changed = dict(fingerprints.current().items() - fingerprints.accepted().items())
    for name in changed:
        print(f"{name} has changed: compare it with its atom in proof/, then run python -m proof --accept")
    failures = sum(_run(module, options.only) for module in MODULES if options.module in (None, module.name))
    return 1 if failures or changed else 0


def _run(module: Module, only: str) -> int:
    """Run a module; return how many of its lines are not as expected."""
    failures = 0
    print(f"\n{'states':>9} {'depth':>5} {'seconds':>7}  {module.name}")
    for name, scenario in module.scenarios.items():
        if only in name:
            result = _timed(name, scenario(""))
            if result.problem is not None:
                failures += 1
                print(f"{'':24}FAILED: {result.problem}", *result.trace, sep=f"\n{'':26}")
    for mutant in (*module.mutants, *module.harmless):
        if only in mutant.broken:
            result = _timed(f"mutant: {mutant.broken}", module.scenarios[mutant.scenario](mutant.broken))
            is_expected = mutant.violated in (result.problem or "") and bool(mutant.violated) == bool(
                result.problem
            )
            failures += not is_expected
            print(f"{'':24}{'' if is_expected else 'UNEXPECTED: '}{result.problem or 'harmless alone'}")
    return failures


def _timed(name: str, scenario: Scenario) -> Result:
    began = monotonic()
    result = explore(scenario)
    print(f"{result.states:9,} {result.depth:5} {monotonic() - began:7.1f}  {name}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
