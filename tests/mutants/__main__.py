"""Break the product line by line, and see the tests turn red."""

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from tests.mutants import run
from tests.mutants.catalogue import AREAS
from tests.mutants.mutant import CatalogueError

# Time limits of a mutant, and of all tests without one.
_SECONDS, _SECONDS_OF_ALL_TESTS = 120, 1800


def main() -> int:
    """Return 0 if every mutant is caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="SUBSTRING", default="", help="part of a mutant's name or file")
    parser.add_argument("--jobs", type=int, metavar="N", default=2, help="mutants at a time, by default 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="output file for the results")
    given = parser.parse_args()
    areas = {mutant: area for area, mutants in AREAS.items() for mutant in mutants}
    chosen = [each for each in areas if given.only.lower() in f"{each.name} {each.file}".lower()]
    if not chosen:
        parser.error(f"no mutant has {given.only!r} in its name or file")
    console, began = Console(width=None if sys.stdout.isatty() else 240), monotonic()
    try:
        number = run.require_passing(chosen, _SECONDS_OF_ALL_TESTS)
        console.print(f"{number} tests pass without a mutant, in {monotonic() - began:.0f} s")
        with ThreadPoolExecutor(given.jobs) as pool:
            tried = pool.map(partial(run.try_out, seconds=_SECONDS), chosen)
            verdicts = list(track(tried, "mutants", len(chosen), console=console, transient=True))
    except CatalogueError as error:
        console.print(f"Error: {error}", markup=False, soft_wrap=True)
        return 1
    rows, table = [], Table("mutant", "file", "caught by", "layer", "seconds", box=None)
    for each, verdict in zip(chosen, verdicts, strict=True):
        rows.append({"area": areas[each], "name": each.name, "file": each.file} | verdict._asdict())
        seen = verdict.test or verdict.outcome.upper(), verdict.layer, f"{verdict.seconds:.1f}"
        table.add_row(*map(Text, (each.name, each.file, *seen)))
    console.print(table)
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    counted = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
    console.print(f"{len(chosen)} mutants in {monotonic() - began:.0f} s: {counted}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0 if outcomes.keys() == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
