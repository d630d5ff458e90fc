"""Plots as stretched SVG, with labels in HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, log, log10

from drain.formatting import visible
from drain.pipeline.stats.plots import Plot, Series
from drain.pipeline.stats.words import compact, seconds

_HEIGHT = 1000
_WIDTH = 10
# From here on, bars touch.
_MANY = 100
_MOST_TICKS = 7
_GAPS = 4
# Narrow screens show every second label of time.
_LABEL_GAPS = 4
_DAYS = (1, 2, 5, 10, 30, 90, 365, 1000, 3000)
_TICKS = (
    *(digit * 10.0**power for power in range(-6, 0) for digit in (1, 2, 5)),
    *(1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 18_000, 43_200),
    *(86_400 * days for days in _DAYS),
)
_MOST_CHARACTERS = 120
# A logarithmic axis has no zero.
_SHORTEST = 1e-6


def draw(plot: Plot) -> str:
    """Draw a non-empty plot."""
    ticks, height = _axis(plot)
    kind = "bars" if plot.bars else "lines"
    shapes = _bars(plot.series, height) if plot.bars else [_line(one.values, height) for one in plot.series]
    paths = "".join(
        _path(shape, one, index) for index, (one, shape) in enumerate(zip(plot.series, shapes, strict=True))
    )
    width = _WIDTH * len(plot.labels)
    grid = "".join(f"M0 {_HEIGHT - height(tick)}h{width}" for tick, _ in ticks)
    legend = "".join(_key(one, index, kind) for index, one in enumerate(plot.series))
    scale = "".join(_tick(height(tick), words) for tick, words in ticks)
    label = escape(f"{plot.title}: {plot.about}. The table below has the numbers.")
    return (
        f'<ul class="legend">{legend}</ul><div class="plot"><div class="y" aria-hidden="true">{scale}</div>'
        f'<svg class="{kind}" viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}"><path class="grid" d="{grid}"/>{paths}</svg>'
        f'<div class="x" aria-hidden="true">{_dates(plot.labels)}</div></div>'
    )


def _axis(plot: Plot) -> tuple[list[tuple[float, str]], Callable[[float], int]]:
    if plot.logarithmic:
        known = [max(value, _SHORTEST) for one in plot.series for value in one.values if value is not None]
        low, high = min(known) / 2, max(known) * 2
        inside = [tick for tick in _TICKS if low <= tick <= high]
        chosen = inside[:: -(-len(inside) // _MOST_TICKS) or 1]
        return [(tick, seconds(tick)) for tick in chosen], lambda value: round(
            _HEIGHT * log(max(value, _SHORTEST) / low) / log(high / low)
        )
    stacks = zip(*(one.values for one in plot.series), strict=True)
    most = max(sum(value or 0 for value in stack) for stack in stacks)
    step = _step(most / _GAPS)
    if plot.bars:
        step = max(step, 1)
    top = step * ceil(most / step)
    unit = 1 if plot.bars else 100
    mark = "" if plot.bars else " %"
    ticks = [(step * number, compact(step * number * unit) + mark) for number in range(round(top / step) + 1)]
    return ticks, lambda value: round(_HEIGHT * value / top)


def _step(least: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** ceil(log10(least) - 1)
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * 0.999_999)


def _bars(series: Sequence[Series], height: Callable[[float], int]) -> list[str]:
    base = [0] * len(series[0].values)
    width = _WIDTH - 1 if len(base) < _MANY else _WIDTH
    shapes = []
    for one in series:
        shape = []
        for index, value in enumerate(one.values):
            if value:
                tall = max(height(value), 2)
                base[index] += tall
                shape.append(f"M{index * _WIDTH} {_HEIGHT - base[index]}h{width}v{tall}h-{width}z")
        shapes.append("".join(shape))
    return shapes


def _line(values: Sequence[float | None], height: Callable[[float], int]) -> str:
    """Draw a line with gaps; a lone value is a dash."""
    shape: list[str] = []
    around = [None, *values, None]
    for index, value in enumerate(values):
        if value is not None:
            x, y = index * _WIDTH + _WIDTH // 2, _HEIGHT - height(value)
            before, after = around[index], around[index + 2]
            if before is not None:
                shape.append(f"L{x} {y}")
            else:
                shape.append(f"M{x} {y}" if after is not None else f"M{x - 3} {y}h6")
    return "".join(shape)


def _path(shape: str, one: Series, index: int) -> str:
    return f'<path class="c{one.colour} n{index}" d="{shape}"/>'


def _key(one: Series, index: int, kind: str) -> str:
    shape = "M0 0h24v12h-24z" if kind == "bars" else "M2 6h20"
    drawn = _path(shape, one, index)
    return (
        f'<li><svg class="{kind}" viewBox="0 0 24 12" aria-hidden="true">{drawn}</svg>{name(one.name)}</li>'
    )


def name(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Escape a foreign text, and shorten its middle."""
    shown = visible(text)
    if len(shown) > most:
        shown = f"{shown[: most // 2]}…{shown[-most // 2 :]}"
    return escape(shown)


def _tick(height: int, words: str) -> str:
    return f'<span style="bottom:{height / 10:g}%">{words}</span>'


def _dates(labels: Sequence[str]) -> str:
    last = len(labels) - 1
    # Four labels would overlap on a narrow screen.
    gaps = _LABEL_GAPS if last >= _LABEL_GAPS else 2 if last == 2 else 1
    places = sorted({round(last * number / gaps) for number in range(gaps + 1)})
    return "".join(
        f'<span style="left:{100 * (index + 0.5) / len(labels):.4g}%">{labels[index]}</span>'
        for index in places
    )
