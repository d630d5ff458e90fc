"""Results of `make soak SOAK_OUTPUT=benchmarks`, for RESULTS.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import figures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUMMARY = Path(__file__).with_name("soak.json")


def sections(summary: Path) -> list[str]:
    """Render the section on the last soak; empty if there was none."""
    if not summary.exists():
        return []
    found = json.loads(summary.read_text(encoding="utf-8"))
    counts = [
        *(("jobs", name, number) for name, number in found["jobs"].items()),
        *(("done", name, number) for name, number in found["faults"].items()),
        *(("survived", name, number) for name, number in found["survived"].items()),
        *(("must not be", name, len(ids)) for name, ids in found["found"].items()),
        ("must not be", "breaches that the audit found", len(found["breaches"])),
    ]
    table = figures.table(
        ("", "what", "how often"), [(kind, name, f"{number:,}") for kind, name, number in counts]
    )
    coverage = found["coverage"]
    letters = list(next(iter(coverage.values())))
    grid = figures.table(
        ("fault", *letters),
        [(name, *(f"{counts[letter]:,}" for letter in letters)) for name, counts in coverage.items()],
    )
    text = (
        f"## Soak\n\n{found['seconds']:.0f} s of faults at load {found.get('load', 1):g} with seed {found['seed']}, "
        f"then {found['drained_seconds']:.0f} s until all was done; a separate run by `make soak`. Every process "
        f"and both servers were killed, stopped, flushed and replaced at random, while applications staged, "
        f"committed and rolled back.\n\n{table}\n\nTransitions of jobs during each fault:\n\n{grid}"
    )
    return [text, *_growth(found.get("growth", []))]


def _growth(growth: Sequence[Mapping[str, Any]]) -> list[str]:
    if not growth:
        return []
    columns = ("middle", "last", "allowed", "per_day")
    table = figures.table(
        ("", "median of the second third", "of the last third", "allowed", "growth a day"),
        [(f"{each['kind']}: {each['name']}", *(f"{each[name]:,}" for name in columns)) for each in growth],
    )
    return [f"Resources used by the run, in bytes or counts:\n\n![Memory, tables, disk](soak.png)\n\n{table}"]
