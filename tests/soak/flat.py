"""Judges whether samples stay flat: the last third of the run against the middle third.

The first third is for warming up. Medians ignore the peaks of faults and of windows. Something that grows evenly from
nothing is two thirds larger in the last third than in the middle one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

# Of a third of the run; a shorter run shows growth, and does not fail by it.
WARM_UP_SECONDS = 600.0
_FEWEST = 5
_DAY_SECONDS = 86_400
_MIB = 1 << 20

Series = Mapping[tuple[str, str], list[tuple[float, float]]]


class Bound(NamedTuple):
    """How much more the last third may have: a share of the middle third, and some in any case."""

    share: float
    slack: float


# By kind; bytes, bytes a second, or numbers.
BOUNDS = {
    "memory": Bound(0.05, 4 * _MIB),
    "tables": Bound(0.25, _MIB),
    "disk": Bound(0.10, 32 * _MIB),
    "WAL a second": Bound(0.25, 64 * 1024),
    "dead rows": Bound(0.25, 500),
    "numbers": Bound(0.25, 10),
}


class Sample(NamedTuple):
    """Values by kind and name, some seconds after the beginning."""

    seconds: float
    values: Mapping[str, Mapping[str, float]]


class Growth(NamedTuple):
    """Growth of one series.

    Attributes:
        middle: Median of the middle third.
        last: Median of the last third.
        allowed: What the last third may have.
        per_day: Growth between the two medians, for a day.
    """

    kind: str
    name: str
    middle: float
    last: float
    allowed: float
    per_day: float

    @property
    def is_too_much(self) -> bool:
        """Whether the series is not flat."""
        return self.last > self.allowed


def series(samples: Iterable[Sample]) -> Series:
    """Arrange samples by kind and name."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        for kind, values in sample.values.items():
            for name, value in values.items():
                found[kind, name].append((sample.seconds, value))
    return found


def growth(all_series: Series, seconds: float) -> list[Growth]:
    """Compare the thirds of each series of a run that took `seconds`; leave out series with too few samples."""
    third = seconds / 3
    found = []
    for (kind, name), points in sorted(all_series.items()):
        middle = [value for at, value in points if third <= at < 2 * third]
        last = [value for at, value in points if at >= 2 * third]
        if min(len(middle), len(last)) >= _FEWEST:
            before, after = median(middle), median(last)
            allowed = before * (1 + BOUNDS[kind].share) + BOUNDS[kind].slack
            per_day = (after - before) * _DAY_SECONDS / third
            found.append(Growth(kind, name, before, after, allowed, per_day))
    return found


def leaks(found: Iterable[Growth], seconds: float) -> list[Growth]:
    """Choose those that are not flat; none of a run that was too short to warm up."""
    return [each for each in found if each.is_too_much] if seconds / 3 >= WARM_UP_SECONDS else []
