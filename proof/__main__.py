"""Runs all scenarios and mutants: `python -m proof`; `--accept` after a look at changed statements."""

from __future__ import annotations

import argparse
import sys
from time import monotonic

from proof import fingerprints
from proof.checker import Result, Scenario, explore
from proof.scenarios import HARMLESS_ALONE, MUTANTS, SCENARIOS


def main() -> int:
    """Print a line for each scenario and mutant; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("--accept", action="store_true", help="accept the SQL as modelled, and exit")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="scenarios and mutants whose name contains it"
    )
    options = parser.parse_args()
    if options.accept:
        fingerprints.accept()
        return 0
    failures = 0
    changed = dict(fingerprints.current().items() - fingerprints.accepted().items())
    for name in changed:
        print(f"{name} has changed: compare it with proof/statements.py, then run python -m proof --accept")
    print(f"{'states':>9} {'depth':>5} {'seconds':>7}  scenario")
    for name, scenario in SCENARIOS.items():
        if options.only in name:
            result = _timed(name, scenario(""))
            if result.problem is not None:
                failures += 1
                print(f"{'':24}FAILED: {result.problem}", *result.trace, sep=f"\n{'':26}")
    print(f"\n{'states':>9} {'depth':>5} {'seconds':>7}  mutant")
    for mutant in (*MUTANTS, *HARMLESS_ALONE):
        if options.only in mutant.broken:
            result = _timed(mutant.broken, SCENARIOS[mutant.scenario](mutant.broken))
            is_expected = mutant.violated in (result.problem or "") and bool(mutant.violated) == bool(
                result.problem
            )
            failures += not is_expected
            print(f"{'':24}{'' if is_expected else 'UNEXPECTED: '}{result.problem or 'harmless alone'}")
    return 1 if failures or changed else 0


def _timed(name: str, scenario: Scenario) -> Result:
    began = monotonic()
    result = explore(scenario)
    print(f"{result.states:9,} {result.depth:5} {monotonic() - began:7.1f}  {name}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
