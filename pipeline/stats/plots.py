"""Plots of the statistics, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from drain import formatting
from drain.pipeline.stats.question import PERIODS
from drain.pipeline.stats.report import Report, Times
from drain.pipeline.stats.words import count, period_start, seconds, share, whole

_QUEUES = 5
# More bars would be narrower than a phone's pixel.
_MOST_PERIODS = 400
# Colours on the page; unnamed reasons share the rest's.
REST = 5
_PERCENTILES = {"p50": 0, "p95": 1, "p99": 3}
_REASONS = {"failed": 1, "gave up": 3, "expired": 0, "unreadable": 4, "lease": 2}


@dataclass(frozen=True)
class Series:
    """Numbers for each period; None where nothing is measured."""

    name: str
    colour: int
    values: Sequence[float | None]


@dataclass(frozen=True)
class Plot:
    """Numbers over time.

    Attributes:
        nothing: Sentence for an empty plot.
        labels: Starts of the periods, without gaps.
        series: Stacked bars of counts, or lines.
        words: Format of a number.
    """

    title: str
    about: str
    nothing: str
    labels: Sequence[str]
    series: Sequence[Series]
    words: Callable[[float | None], str]
    bars: bool = False
    logarithmic: bool = False

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to draw."""
        known = [value for one in self.series for value in one.values if value is not None]
        return not (known if self.logarithmic else any(known))


def plots(report: Report) -> list[Plot]:
    """Plot throughput, times, dead jobs and retries."""
    starts, cut = _starts(report)
    labels = [period_start(start, report.per) for start in starts]
    done = {period.start: period.done for period in report.periods}
    retried = [
        found.retried_share if (found := done.get(start)) and found.finished else None for start in starts
    ]
    return [
        Plot(
            "Throughput",
            f"jobs completed per {report.per}, by queue{cut}",
            "No completed jobs.",
            labels,
            _finished_by_queue(report, starts),
            whole,
            bars=True,
        ),
        Plot(
            "Waiting time",
            f"from due to claimed, of jobs that were claimed once; percentiles, logarithmic{cut}",
            "No completed job was claimed only once.",
            labels,
            _percentiles(starts, {start: found.waiting for start, found in done.items()}),
            seconds,
            logarithmic=True,
        ),
        Plot(
            "Processing time",
            f"from claim to completion; percentiles, logarithmic{cut}",
            "No completed jobs.",
            labels,
            _percentiles(starts, {start: found.processing for start, found in done.items()}),
            seconds,
            logarithmic=True,
        ),
        Plot(
            "Dead jobs",
            f"given up per {report.per}, by reason{cut}",
            "No dead jobs.",
            labels,
            _dead_by_reason(report, starts),
            whole,
            bars=True,
        ),
        Plot(
            "Retries",
            f"share of completed jobs with more than one attempt{cut}",
            "Every completed job took one attempt.",
            labels,
            [Series("retried", 1, retried)],
            lambda value: share(value or 0),
        ),
    ]


def _starts(report: Report) -> tuple[list[datetime], str]:
    if not report.periods:
        return [], ""
    first, last, length = report.periods[0].start, report.periods[-1].start, PERIODS[report.per]
    number = (last - first) // length + 1
    shown = min(number, _MOST_PERIODS)
    cut = f"; the latest {shown} of {count(number)} {report.per}s" if shown < number else ""
    return [last - index * length for index in reversed(range(shown))], cut


def _finished_by_queue(report: Report, starts: Sequence[datetime]) -> list[Series]:
    totals: Counter[str] = Counter()
    for job in report.jobs:
        totals[job.queue or ""] += job.done.finished
    known = [queue for queue, finished in totals.most_common(_QUEUES) if finished]
    values: dict[str, Counter[datetime]] = {queue: Counter() for queue in known}
    rest: Counter[datetime] = Counter()
    for detail in report.details:
        values.get(detail.queue or "", rest)[detail.start] += detail.done.finished
    series = [
        Series(queue, colour, [values[queue][start] for start in starts])
        for colour, queue in enumerate(known)
    ]
    more = len(+totals) - len(known)
    others = Series(formatting.count(more, "other queue"), REST, [rest[start] for start in starts])
    return [*series, others] if more else series


def _dead_by_reason(report: Report, starts: Sequence[datetime]) -> list[Series]:
    dead = {period.start: period.dead for period in report.periods}
    return [
        Series(reason, _REASONS.get(reason, REST), [dead.get(start, {}).get(reason, 0) for start in starts])
        for reason in sorted(report.total.dead, key=lambda reason: -report.total.dead[reason])
    ]


def _percentiles(starts: Sequence[datetime], times: Mapping[datetime, Times | None]) -> list[Series]:
    return [
        Series(name, colour, [getattr(times.get(start), name, None) for start in starts])
        for name, colour in _PERCENTILES.items()
    ]
