"""Plots of the statistics, by Plotly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import Any

from drain.visible import visible
from pipeline.stats.question import PERIODS
from pipeline.stats.report import Period, Report, Times
from pipeline.stats.words import seconds

# Colours of the queues, which people with any colour vision can distinguish: the palette of Okabe and Ito, without
# its yellow, which is too light for a white page.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7A5195", "#8C8C8C")
_REST = "#C4C4C4"
_PERCENTILES = {"p50": "#56B4E9", "p95": "#0072B2", "p99": "#D55E00"}
_REASONS = {
    "failed": "#D55E00",
    "gave up": "#7A5195",
    "expired": "#CC79A7",
    "unreadable": "#8C8C8C",
    "lease": "#0072B2",
}
# Upper bound of the queues with a colour of their own; all others are drawn together.
_QUEUES = 7
# Upper bound of the periods of an axis on which periods without jobs are drawn as gaps; longer axes skip them.
_MOST_PERIODS = 20_000
# Number of periods from which on bars touch each other, and lines have no markers.
_MANY = 100
# Upper bound of the days whose axis names each day.
_FEW_DAYS = 14
# Ticks of the axis of a few days; by default Plotly would name their noons.
_EACH_DAY = {"dtick": 86_400_000, "ticklabelmode": "period"}
# Upper bound of the ticks of an axis of durations.
_MOST_TICKS = 9
# Round durations in seconds that ticks are chosen from.
_SECONDS = (1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 18_000, 43_200)
_DAYS = (1, 2, 5, 10, 30, 90, 365, 1000, 3000)
_TICKS = (
    *(digit * 10.0**power for power in range(-6, 0) for digit in (1, 2, 5)),
    *_SECONDS,
    *(86_400 * days for days in _DAYS),
)


@dataclass(frozen=True)
class Plot:
    """Figure of Plotly, with its title and a line of description."""

    title: str
    about: str
    figure: Any


def plots(report: Report) -> list[Plot]:
    """Plot throughput, waiting and processing times, dead jobs and retries over time; no plot if no job has ended."""
    if not report.periods:
        return []
    starts = _starts(report)
    waiting = _lines(report, starts, lambda period: period.done.waiting)
    processing = _lines(report, starts, lambda period: period.done.processing)
    finished = _bars(_finished_by_queue(report), starts, report)
    dead = _bars(_dead_by_reason(report), starts, report)
    return [
        Plot("Throughput", f"jobs finished per {report.per}, by queue", finished),
        Plot("Waiting time", "from due to claimed, of jobs that were claimed once; percentiles", waiting),
        Plot("Processing time", "from claimed to finished; percentiles", processing),
        Plot("Dead jobs", f"given up per {report.per}, by reason", dead),
        Plot(
            "Retries", "share of the finished jobs that took more than one attempt", _retries(report, starts)
        ),
    ]


def _starts(report: Report) -> list[datetime]:
    """List the starts of all periods from the first to the last, including those in which no job ended."""
    found = [period.start for period in report.periods]
    length = PERIODS[report.per]
    number = (found[-1] - found[0]) // length + 1
    return [found[0] + index * length for index in range(number)] if number <= _MOST_PERIODS else found


@dataclass(frozen=True)
class _Series:
    name: str
    colour: str
    values: Counter[datetime]


def _finished_by_queue(report: Report) -> list[_Series]:
    totals: Counter[str] = Counter()
    for job in report.jobs:
        totals[job.queue or ""] += job.done.finished
    known = [queue for queue, finished in totals.most_common(_QUEUES) if finished]
    values: dict[str, Counter[datetime]] = {queue: Counter() for queue in known}
    rest: Counter[datetime] = Counter()
    for detail in report.details:
        values.get(detail.queue or "", rest)[detail.start] += detail.done.finished
    series = [_Series(queue, colour, values[queue]) for queue, colour in zip(known, _COLOURS, strict=False)]
    return [*series, _Series("other queues", _REST, rest)] if +rest else series


def _dead_by_reason(report: Report) -> list[_Series]:
    reasons = sorted(report.total.dead, key=lambda reason: -report.total.dead[reason])
    return [_Series(reason, _colour_of(reason), _dead(report.periods, reason)) for reason in reasons]


def _colour_of(reason: str) -> str:
    return _REASONS.get(reason, _COLOURS[2])


def _dead(periods: Iterable[Period], reason: str) -> Counter[datetime]:
    return Counter({period.start: period.dead.get(reason, 0) for period in periods})


def _bars(series: Sequence[_Series], starts: Sequence[datetime], report: Report) -> Any:
    figure = _figure(report, starts, f"jobs per {report.per}")
    figure.update_layout(barmode="stack")
    figure.update_yaxes(rangemode="tozero", tickformat=",~s", fixedrange=True)
    length = PERIODS[report.per]
    for one in series:
        figure.add_bar(
            x=_middles(starts, length),
            y=[one.values[start] for start in starts],
            width=length.total_seconds() * 1000 * (0.9 if len(starts) < _MANY else 1),
            name=escape(visible(one.name)),
            marker={"color": one.colour, "line": {"width": 0}},
            hovertemplate="%{y:,}",
        )
    return figure


def _retries(report: Report, starts: Sequence[datetime]) -> Any:
    figure = _figure(report, starts, "retried, in % of the finished")
    figure.update_yaxes(rangemode="tozero", ticksuffix=" %", fixedrange=True)
    found = {period.start: period.done for period in report.periods}
    shares = [
        done.retried_share * 100 if (done := found.get(start)) and done.finished else None for start in starts
    ]
    figure.add_scatter(
        x=_middles(starts, PERIODS[report.per]),
        y=shares,
        name="retried",
        hovertemplate="%{y:.1f} %",
        **_line("#E69F00", starts),
    )
    return figure


def _lines(report: Report, starts: Sequence[datetime], times: Callable[[Period], Times | None]) -> Any:
    found = {period.start: times(period) for period in report.periods}
    figure = _figure(report, starts, "duration, logarithmic")
    drawn: list[float] = []
    for name, colour in _PERCENTILES.items():
        # A logarithmic axis has no zero.
        values = [max(getattr(one, name), 1e-6) if (one := found.get(start)) else None for start in starts]
        drawn += [value for value in values if value]
        figure.add_scatter(
            x=_middles(starts, PERIODS[report.per]),
            y=values,
            customdata=[seconds(value) for value in values],
            name=name,
            hovertemplate="%{customdata}",
            **_line(colour, starts),
        )
    ticks = _ticks(drawn)
    figure.update_yaxes(
        type="log", tickvals=ticks, ticktext=[seconds(tick) for tick in ticks], fixedrange=True
    )
    return figure


def _ticks(values: Sequence[float]) -> list[float]:
    """Choose round durations around the values as ticks, few enough to be read."""
    if not values:
        return []
    inside = [tick for tick in _TICKS if min(values) / 2 <= tick <= max(values) * 2]
    return inside[:: -(-len(inside) // _MOST_TICKS) or 1]


def _middles(starts: Iterable[datetime], length: timedelta) -> list[datetime]:
    """Shift times to the middle of their period, so that bars stand over it and not around its beginning."""
    return [start + length / 2 for start in starts]


def _line(colour: str, starts: Sequence[datetime]) -> dict[str, Any]:
    # With markers, since a single period between two gaps has no line.
    mode = "lines+markers" if len(starts) < _MANY else "lines"
    return {"mode": mode, "connectgaps": False, "line": {"color": colour, "width": 2}, "marker": {"size": 5}}


def _figure(report: Report, starts: Sequence[datetime], unit: str) -> Any:
    import plotly.graph_objects as go

    length = PERIODS[report.per]
    small = {"size": 12, "color": "#667085"}
    return go.Figure(
        layout={
            "template": "plotly_white",
            "height": 320,
            "margin": {"l": 75, "r": 15, "t": 10, "b": 45},
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#333"},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
            "hovermode": "x unified",
            "showlegend": True,
            "xaxis": {
                "title": {"text": "time (UTC)", "font": small},
                "type": "date",
                "range": [starts[0], starts[-1] + length],
                **(_EACH_DAY if report.per == "day" and len(starts) <= _FEW_DAYS else {}),
                "hoverformat": "%Y-%m-%d %H:00" if report.per == "hour" else "%Y-%m-%d",
            },
            "yaxis": {"title": {"text": unit, "font": small}},
        }
    )
