"""Rules of a queue: how many of its jobs run at a time, how many begin in a time, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Rate:
    """Upper bound of the jobs that begin in a time, such as `10/min`."""

    count: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read `100/s`, `10/min`, `5/h` or `1/d`."""
        count, _, unit = text.partition("/")
        return cls(int(count), _UNITS[unit])

    @property
    def per_second(self) -> float:
        """Jobs a second, on average."""
        return self.count / self.seconds


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of one queue; without any, nothing is limited, and urgent jobs go first."""

    queue: str
    running: int | None = None
    running_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    burst: int | None = None
    fair: bool = False
    weights: Mapping[str, int | float] = field(default_factory=dict)
    ordered: bool = False
    on_dead: Literal["hold", "skip"] = "hold"
    aging_seconds: float | None = None

    @property
    def for_keys(self) -> bool:
        """True if a rule looks at the keys of jobs."""
        return bool(self.running_per_key or self.rate_per_key or self.fair or self.ordered)

    @property
    def limits_anything(self) -> bool:
        """True if there is any rule: then rows are chosen by more than their priority."""
        return bool(self.running or self.rate or self.for_keys or self.aging_seconds)
