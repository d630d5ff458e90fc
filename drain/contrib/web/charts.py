"""SVG charts, with the same in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

from markupsafe import Markup

from drain.contrib.web.templating import rounded
from drain.formatting import clock, count, duration
from drain.read.queue_overview import Number

Numbers: TypeAlias = Sequence[Number | None]

_SPARK = Markup(
    '<svg class="spark {kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
    'aria-label="{words}" preserveAspectRatio="none"><title>{words}</title><path d="{path}"/></svg>'
)
_CHART = Markup(
    '<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{words}">'
    "<title>{words}</title>{parts}</svg>"
)
_METER = Markup(
    '<svg class="meter" viewBox="0 0 100 6" width="100" height="6" role="img" aria-label="{words}">'
    '<title>{words}</title><rect class="track" width="100" height="6" rx="3"/>'
    '<rect class="{kind}" width="{used:.0f}" height="6" rx="3"/></svg>'
)
_PATH = Markup('<path class="{kind}" d="{path}"/>')
_GRID = Markup(
    '<path class="grid" d="M{left} {y:.1f}H{right}"/><text x="{left}" y="{above:.1f}">{text}</text>'
)
_TIME = Markup('<text x="{x:.0f}" y="{y}" text-anchor="{anchor}">{text}</text>')
_WIDTH, _HEIGHT, _BELOW = 960, 180, 18
# Spans of a histogram in seconds and words; the shortest that covers all events is used.
_SPANS = (
    (3600, "hour"),
    (6 * 3600, "6 hours"),
    (86_400, "day"),
    (7 * 86_400, "7 days"),
    (30 * 86_400, "30 days"),
    (365 * 86_400, "year"),
)
_BARS = 60
# Bars of a level's sparkline, and samples that it needs.
_LEVEL_BARS, _FEW_SAMPLES = 60, 5


class Series(NamedTuple):
    """Numbers by time step, earliest first; `kind` is a CSS class."""

    kind: str
    label: str
    numbers: Numbers


def total(curves: Sequence[Numbers]) -> list[Number | None]:
    """Sum curves by step; None where one is unknown."""
    return [_sum(step) for step in zip(*curves, strict=True)]


def _sum(step: Sequence[Number | None]) -> Number | None:
    known = [each for each in step if each is not None]
    if len(known) < len(step):
        return None
    return Number(sum(each.number for each in known), any(each.is_estimate for each in known))


def words(numbers: Numbers, what: str = "completed") -> str:
    """Describe a curve of five-minute steps."""
    known = [each for each in numbers if each is not None]
    if not known:
        return "not counted yet"
    whole, most = sum(each.number for each in known), max(each.number for each in known)
    about = "about " if any(each.is_estimate for each in known) else ""
    if about:
        whole, most = rounded(whole), rounded(most)
    minutes = 5 * len(known)
    span = f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"
    return f"{about}{whole:,} {what} in {span}, at most {about}{most:,} in 5 min"


def spark(numbers: Numbers, what: str = "completed", kind: str = "") -> Markup:
    """Draw a bar per known step."""
    return _spark(numbers, words(numbers, what), kind)


def _spark(numbers: Numbers, said: str, kind: str = "") -> Markup:
    width, height = 144, 28
    path = _bars(numbers, [0] * len(numbers), _most([numbers]), width, height)
    return _SPARK.format(kind=kind, width=width, height=height, words=said, path=path)


def level(numbers: Numbers, what: str) -> Markup:
    """Draw a number sampled each minute, an hour or more wide; nothing for too few samples."""
    known = [each for each in numbers if each is not None]
    if len(known) < _FEW_SAMPLES:
        return Markup()
    padded = [*numbers, *[None] * (_LEVEL_BARS - len(numbers))]
    bars = [
        max((each for each in part if each is not None), default=None)
        for at in range(_LEVEL_BARS)
        for part in [padded[at * len(padded) // _LEVEL_BARS : (at + 1) * len(padded) // _LEVEL_BARS]]
    ]
    most, least = max(known), min(known)
    span = duration(60 * len(numbers))
    said = f"{_about(least)} to {_about(most)} {what} in the last {span}"
    return _spark(bars, said)


def _about(number: Number) -> str:
    return f"about {rounded(number.number):,}" if number.is_estimate else f"{number.number:,}"


def stacked(series: Sequence[Series], begins: datetime, ends: datetime) -> Markup:
    """Draw stacked bars with a scale."""
    # Known bars are drawn even if others of their step are not counted yet.
    heights = [
        sum(number.number for number in step if number is not None)
        for step in zip(*(each.numbers for each in series), strict=True)
    ]
    most = _nice(max([2, *heights]))
    below = [0] * len(heights)
    parts = [
        _GRID.format(left=0, right=_WIDTH, y=y, above=y + 12, text=f"{most * share:,.10g}" if share else "")
        for share in (1, 0.5, 0)
        for y in [_HEIGHT * (1 - share)]
    ]
    for each in series:
        parts.append(_PATH.format(kind=each.kind, path=_bars(each.numbers, below, most, _WIDTH, _HEIGHT)))
        below = [
            low + (number.number if number else 0) for low, number in zip(below, each.numbers, strict=True)
        ]
    for place, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        text = clock(begins + (ends - begins) * place)[11:16]
        parts.append(_TIME.format(x=place * _WIDTH, y=_HEIGHT + _BELOW - 4, anchor=anchor, text=text))
    said = "; ".join(words(each.numbers, each.label) for each in series)
    return _CHART.format(width=_WIDTH, height=_HEIGHT + _BELOW, words=said, parts=Markup("").join(parts))


def meter(used: int, limit: int) -> Markup:
    """Draw how much of a limit is used."""
    share = min(1.0, used / limit)
    kind = "full" if share == 1 else "used"
    return _METER.format(kind=kind, used=100 * share, words=f"{used:,} of {limit:,}")


def _bars(numbers: Numbers, below: Sequence[int], most: float, width: int, height: int) -> str:
    step = width / max(1, len(numbers))
    return "".join(
        f"M{place * step:.1f} {height - low:.1f}v-{tall:.1f}h{step * 0.8:.1f}v{tall:.1f}z"
        for place, (each, under) in enumerate(zip(numbers, below, strict=True))
        if each is not None and each.number
        for low in [height * under / most]
        for tall in [max(1.0, height * each.number / most)]
    )


def _most(curves: Sequence[Numbers]) -> int:
    return max((each.number for curve in curves for each in curve if each is not None), default=0) or 1


def _nice(most: int) -> int:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10 ** (len(str(most)) - 1)
    return int(power * next(factor for factor in (1, 2, 5, 10) if factor * power >= most))


class Histogram(NamedTuple):
    """Event counts in time steps up to now; `span` has the time in words."""

    numbers: Sequence[int]
    seconds: float
    span: str
    earlier: int

    @property
    def words(self) -> str:
        """The bars in words."""
        most = f"at most {max(self.numbers):,} in {duration(self.seconds)}"
        earlier = f"; {self.earlier:,} earlier" if self.earlier else ""
        return f"{count(sum(self.numbers), 'death')} in the last {self.span}, {most}{earlier}"

    def draw(self) -> Markup:
        """Draw a bar per non-empty step."""
        numbers = [Number(number) for number in self.numbers]
        path = _bars(numbers, [0] * len(numbers), _most([numbers]), 480, 56)
        return _SPARK.format(kind="failures", width=480, height=56, words=self.words, path=path)


def histogram(times: Sequence[datetime], now: datetime) -> Histogram:
    """Count events in time steps; the last ends at `now` and includes later events."""
    ages = [max(0.0, (now - at).total_seconds()) for at in times]
    oldest = max(ages, default=0.0)
    span, text = next(((span, text) for span, text in _SPANS if oldest < span), _SPANS[-1])
    seconds = span / _BARS
    counted = Counter(int(age // seconds) for age in ages if age < span)
    numbers = [counted[_BARS - 1 - place] for place in range(_BARS)]
    return Histogram(numbers, seconds, text, len(ages) - sum(numbers))
