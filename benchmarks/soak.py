"""Results of `make soak SOAK_OUTPUT=benchmarks/soak.json`, for RESULTS.md."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import figures

SUMMARY = Path(__file__).with_name("soak.json")


def sections(summary: Path) -> list[str]:
    """Make the section on the last soak; empty if there was none."""
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
        f"## Soak\n\n{found['seconds']:.0f} s of faults with seed {found['seed']}, and "
        f"{found['drained_seconds']:.0f} s until all was done; a run of its own, by `make soak`. Every process "
        f"and both servers were killed, stopped, flushed and replaced at random, while applications staged, "
        f"committed and rolled back.\n\n{table}\n\nTransitions of jobs during each fault:\n\n{grid}"
    )
    return [text]
