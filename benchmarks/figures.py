"""Number formats for RESULTS.md and standard error."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def milliseconds(values: Sequence[float], percent: float) -> str:
    ordered = sorted(values)
    index = min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))
    return f"{ordered[index] * 1000:.1f}"


def ratio(values: Sequence[float], to: Sequence[float], digits: int = 1) -> str:
    ratios = [value / other for value, other in zip(values, to, strict=True)]
    return f"{statistics.median(ratios):.{digits}f} ({min(ratios):.{digits}f} – {max(ratios):.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot_growth(path: Path, sizes: Sequence[int], measured: Mapping[str, Sequence[float]]) -> None:
    """Plot seconds over millions of rows, with one line per solution."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, seconds in measured.items():
        axes.plot([size / 1e6 for size in sizes], seconds, marker="o", label=name)
    axes.set_xlabel("rows, in millions")
    axes.set_ylabel("seconds")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


_BEGIN = "<!-- {} -->\n"


def merge(path: Path, parts: Mapping[str, Sequence[str]], order: Sequence[str] = ()) -> str:
    """Replace parts of a results file, each marked by a comment above it; returns the new text.

    Args:
        path: The file, which need not exist.
        parts: Sections by part name.
        order: Part names in file order; other parts follow.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = dict(re.findall(r"^<!-- (\w+) -->\n(.*?)(?=^<!-- |\Z)", text, re.MULTILINE | re.DOTALL))
    found |= {name: "\n\n".join(sections) for name, sections in parts.items()}
    names = [*(name for name in order if name in found), *(name for name in found if name not in order)]
    return "\n\n".join(f"{_BEGIN.format(name)}{found[name].rstrip()}" for name in names) + "\n"


def say(text: str) -> None:
    print(text, flush=True)
