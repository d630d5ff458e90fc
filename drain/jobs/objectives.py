"""Service level objectives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from drain.formatting import duration, seconds, visible

# Run times, in seconds.
RUN_BUCKETS: tuple[float, ...] = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
# Wait times and times of flows, in seconds. An SLO names one: shares are exact only at bucket bounds.
WAIT_BUCKETS: tuple[float, ...] = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0),
    *(20.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0),
    *(7200.0, 14400.0, 28800.0, 86400.0),
)
TARGETS = WAIT_BUCKETS
# Below it, no rate of failures burns the budget fast.
_SMALLEST_PERCENT = 50.0
# Jobs start, flows finish.
Verb: TypeAlias = Literal["start", "finish"]
_EXAMPLES: dict[Verb, str] = {"start": "99% start within 5s", "finish": "99% finish within 10m"}
_OBJECTIVE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*%\s+(start|finish)\s+within\s+(\S.*?)\s*")


@dataclass(frozen=True, slots=True)
class Objective:
    """Share of jobs that start within a time of being due, or of flows that finish within a time of being staged.

    Attributes:
        percent: At least 50 and below 100.
        seconds: One of `TARGETS`.
    """

    percent: float
    seconds: float
    verb: Verb = "start"

    def __post_init__(self) -> None:
        if not _SMALLEST_PERCENT <= self.percent < 100:
            reason = "100% leaves no budget" if self.percent == 100 else f"not {self.percent:g}%"
            raise ValueError(f"the share of an SLO must lie between 50% and 99.999%; {reason}")
        if self.seconds not in TARGETS:
            nearest = min(TARGETS, key=lambda each: abs(each - self.seconds))
            raise ValueError(
                f"within {_time(self.seconds)} cannot be measured; the nearest that can is {_time(nearest)} (there are "
                f"{', '.join(map(_time, TARGETS))})"
            )

    @classmethod
    def parse(cls, text: object, verb: Verb = "start") -> Objective:
        """Parse a text, with times such as `250ms` or `2m`; ValueError if invalid."""
        match = _OBJECTIVE.fullmatch(text) if isinstance(text, str) else None
        form = f"an SLO is written as '{_EXAMPLES[verb]}'"
        if match is None or match[2] != verb:
            raise ValueError(f"{form}, not as {visible(repr(text))[:60]}")
        return cls(float(match[1]), _seconds(match[3], form), verb)

    @property
    def budget(self) -> float:
        """Fraction that may be later."""
        # In binary, 1 - 0.99 is not 0.01.
        return round((100 - self.percent) / 100, 7)

    def __str__(self) -> str:
        return f"{self.percent:g}% {self.verb} within {_time(self.seconds)}"


def check(text: object) -> None:
    """Check an optional objective; ValueError if invalid."""
    if text is not None:
        Objective.parse(text)


def _seconds(text: str, form: str) -> float:
    milliseconds = re.fullmatch("([0-9]{1,9})ms", text)
    if milliseconds:
        return int(milliseconds[1]) / 1000
    try:
        return seconds(text)
    except ValueError as error:
        raise ValueError(f"{form}: {error}, not as '{visible(text)[:40]}'") from None


def _time(value: float) -> str:
    return f"{value * 1000:g}ms" if value < 1 else duration(value)
