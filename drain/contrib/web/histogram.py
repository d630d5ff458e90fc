"""Event counts over time as SVG bars, with the same in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from markupsafe import Markup

from drain.formatting import count, duration

# Spans in seconds and words; the shortest that covers all events is used.
_SPANS = (
    (3600, "hour"),
    (6 * 3600, "6 hours"),
    (86_400, "day"),
    (7 * 86_400, "7 days"),
    (30 * 86_400, "30 days"),
    (365 * 86_400, "year"),
)
_BARS = 60
_WIDTH, _HEIGHT = 480, 56
_SVG = Markup(
    '<svg class="curve" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
    'aria-label="{words}" preserveAspectRatio="none"><title>{words}</title>{bars}</svg>'
)
_BAR = Markup('<rect x="{x}" y="{y:.1f}" width="{width}" height="{height:.1f}"/>')


class Histogram(NamedTuple):
    """Event counts in time steps up to now; `span` has the time in words."""

    numbers: Sequence[int]
    seconds: float
    span: str
    earlier: int

    @property
    def words(self) -> str:
        """The bars in words."""
        most = f"{max(self.numbers):,} at most in {duration(self.seconds)}"
        earlier = f"; {self.earlier:,} earlier" if self.earlier else ""
        return f"{count(sum(self.numbers), 'death')} in the last {self.span}, {most}{earlier}"

    def draw(self) -> Markup:
        """Draw a bar for each non-empty step."""
        most, width = max(self.numbers) or 1, _WIDTH // len(self.numbers)
        bars = Markup("").join(
            _BAR.format(x=place * width, y=_HEIGHT - height, width=width - 1, height=height)
            for place, number in enumerate(self.numbers)
            if number
            for height in [max(1.0, _HEIGHT * number / most)]
        )
        return _SVG.format(width=_WIDTH, height=_HEIGHT, words=self.words, bars=bars)


def histogram(times: Sequence[datetime], now: datetime) -> Histogram:
    """Count events in time steps; the last step ends at `now` and includes later events."""
    ages = [max(0.0, (now - at).total_seconds()) for at in times]
    oldest = max(ages, default=0.0)
    span, words = next(((span, words) for span, words in _SPANS if oldest < span), _SPANS[-1])
    seconds = span / _BARS
    counted = Counter(int(age // seconds) for age in ages if age < span)
    numbers = [counted[_BARS - 1 - place] for place in range(_BARS)]
    return Histogram(numbers, seconds, words, len(ages) - sum(numbers))
