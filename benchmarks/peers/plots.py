"""The figures as two pictures."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.peers import peers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.peers.results import Delays, Rates, Results

_OURS, _THEIRS = "#c44e52", "#8c9bb0"
_TITLES = {
    "noop": "A job that does nothing",
    "cpu": "1 ms of processor time",
    "update": "One UPDATE, committed",
    "wait": "A wait of 10 ms, 16 at once (ideal: 1,600)",
}
_PERCENTILES = {"p50": "50 %", "p99": "99 %", "p999": "99.9 %"}


def draw(results: Results, rates: Path, delays: Path) -> None:
    """Draw both pictures, from the figures measured so far."""
    if results.rates or results.at_once:
        draw_rates(results, rates)
    if results.delays:
        draw_delays(results.delays, delays)


def draw_rates(results: Results, path: Path) -> None:
    """Draw a panel for each kind of work, with a bar for each peer on a logarithmic scale."""
    from matplotlib.figure import Figure

    panels: dict[str, list[Rates]] = {}
    for each in results.rates + results.at_once:
        panels.setdefault(each.work, []).append(each)
    figure = Figure(figsize=(13, 3.9 * ((len(panels) + 1) // 2)), layout="constrained")
    axes = figure.subplots((len(panels) + 1) // 2, 2, squeeze=False).flat
    for axis, (work, measured) in zip(axes, panels.items(), strict=False):
        _bars(axis, measured)
        axis.set_title(_TITLES[work], loc="left", fontweight="bold")
    for axis in list(axes)[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle("Jobs executed a second: median of the rounds, lines from the lowest to the highest")
    figure.savefig(path, dpi=110)


def draw_delays(delays: Sequence[Delays], path: Path) -> None:
    """Draw a panel for each rate of commits, with three marks for each peer on a logarithmic scale."""
    from matplotlib.figure import Figure

    panels = sorted({each.per_second for each in delays})
    figure = Figure(figsize=(13, 5), layout="constrained")
    for axis, per_second in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        measured = [each for each in delays if each.per_second == per_second][::-1]
        for figure_, label in _PERCENTILES.items():
            values = [max(0.1, statistics.median(each.of(figure_))) for each in measured]
            axis.plot(values, range(len(measured)), "o", label=label, markersize=7)
        for position, each in enumerate(measured):
            marks = [max(0.1, statistics.median(each.of(name))) for name in _PERCENTILES]
            axis.hlines(position, min(marks), max(marks), color="0.8", zorder=0)
        axis.set_yticks(range(len(measured)), [_label_of_delay(each) for each in measured])
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.set_xlabel("milliseconds from commit to start")
        axis.set_title(f"{per_second:,} commits a second", loc="left", fontweight="bold")
        axis.grid(axis="x", alpha=0.3)
        axis.legend(
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=3,
            frameon=False,
            columnspacing=1,
            handletextpad=0.1,
        )
    figure.savefig(path, dpi=110)


def _bars(axis: Any, measured: Sequence[Rates]) -> None:
    ordered = sorted(measured, key=lambda each: statistics.median(each.rates))
    medians = [statistics.median(each.rates) for each in ordered]
    spreads = [
        [median - min(each.rates) for median, each in zip(medians, ordered, strict=True)],
        [max(each.rates) - median for median, each in zip(medians, ordered, strict=True)],
    ]
    colours = [_OURS if each.peer.startswith(peers.DRAIN) else _THEIRS for each in ordered]
    axis.barh([each.peer for each in ordered], medians, xerr=spreads, color=colours, ecolor="0.3", capsize=3)
    for position, (median, each) in enumerate(zip(medians, ordered, strict=True)):
        axis.annotate(
            f"{median:,.0f}",
            (max(each.rates), position),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axis.set_xscale("log")
    axis.set_xlim(min(medians) / 3, max(medians) * 4)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_xlabel("jobs a second")
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)


def _label_of_delay(delays: Delays) -> str:
    """Add the rate of a peer that falls behind: its delays are those of a growing queue."""
    started = statistics.median(delays.of("started_per_second"))
    behind = (
        statistics.median(delays.of("started_of_committed")) < 0.999 or started < 0.95 * delays.per_second
    )
    return f"{delays.peer}\n({started:,.0f} a second)" if behind else delays.peer
