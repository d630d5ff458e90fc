"""What was sampled, as a picture."""

from __future__ import annotations

from pathlib import Path

from tests.soak.flat import BOUNDS, Series

_MIB = 1 << 20
_IN_BYTES = ("memory", "tables", "disk", "WAL a second")
# The largest of a kind.
_LINES = 8


def draw(series: Series, path: Path) -> None:
    """Draw a panel for each kind, over hours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 12), layout="constrained")
    for axis, kind in zip(figure.subplots(3, 2).flat, BOUNDS, strict=True):
        unit = _MIB if kind in _IN_BYTES else 1
        lines = {name: points for (its, name), points in series.items() if its == kind}
        for name in sorted(lines, key=lambda name: -max(value for _, value in lines[name]))[:_LINES]:
            hours, values = zip(*((at / 3600, value / unit) for at, value in lines[name]), strict=True)
            axis.plot(hours, values, label=name, linewidth=1)
        axis.set_title(f"{kind}, MiB" if unit == _MIB else kind, loc="left", fontweight="bold")
        axis.set_ylim(bottom=0)
        axis.set_xlabel("hours")
        axis.grid(alpha=0.3)
        if lines:
            axis.legend(fontsize=7)
    figure.savefig(path, dpi=110)
