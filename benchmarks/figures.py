"""How the figures are written."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def say(text: str) -> None:
    print(text, flush=True)
