"""Rules of a queue: concurrency, rates, and order.

CHECKs on `queues` accept exactly the same rules (tests/database/test_rules_of_both.py), so hand-written statements
cannot make others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from drain.config import QUEUE_CHARACTERS, QUEUE_NAME
from drain.errors import ConfigError
from drain.formatting import visible
from drain.jobs.values import LONGEST_KEY
from drain.tables.rules import UNITS, RulesRow

OnDead = Literal["hold", "skip"]

# Turns are fractions, exact enough between these.
_SMALLEST_WEIGHT = 0.001
_LARGEST_WEIGHT = 1000
# PostgreSQL's `integer`.
_LARGEST_LIMIT = 2**31 - 1
_YEAR_SECONDS = 365 * 24 * 3600
_LONGEST_AGING_SECONDS = _YEAR_SECONDS
# A new leader reads the jobs begun while an empty bucket fills.
_LONGEST_REFILL_SECONDS = _YEAR_SECONDS

_RATE = re.compile(r"(0|[1-9][0-9]{0,8})/([a-z]+)")
_RATE_FORM = "is written as 100/s, 10/min, 5/h or 1/d"


@dataclass(frozen=True, slots=True)
class Rate:
    """Limit on starts, such as `10/min`: at least 1 per second, minute, hour or day.

    Raises:
        ConfigError: Invalid count or time.
    """

    count: int
    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.count < 10**9 or self.seconds not in UNITS.values():
            raise ConfigError(f"a rate {_RATE_FORM}, with a number from 1 to 999999999")

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse `100/s`, `10/min`, `5/h` or `1/d`, or raise ConfigError."""
        match = _RATE.fullmatch(text)
        if not match or match[2] not in UNITS:
            raise ConfigError(f"a rate {_RATE_FORM}, not as '{visible(text)[:50]}'")
        if not int(match[1]):
            raise ConfigError("a rate of zero would start nothing: pause the queue instead")
        return cls(int(match[1]), UNITS[match[2]])

    @property
    def per_second(self) -> float:
        """Starts per second."""
        return self.count / self.seconds

    def __str__(self) -> str:
        unit = next(unit for unit, seconds in UNITS.items() if seconds == self.seconds)
        return f"{self.count}/{unit}"


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of one queue, as in `drain.queues.set`; by default urgent jobs go first.

    Attributes:
        burst: None for one second's jobs, at least one.
        weights: Turns of a key; 1 unless named.
        on_dead: Whether a dead job holds its key (`hold`) or not (`skip`).
        aging_seconds: Wait that counts as one step of priority.

    Raises:
        ConfigError: A rule is invalid or contradicts another.
    """

    queue: str
    running: int | None = None
    running_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    burst: int | None = None
    fair: bool = False
    weights: Mapping[str, int | float] = field(default_factory=lambda: MappingProxyType({}))
    ordered: bool = False
    on_dead: OnDead = "hold"
    aging_seconds: float | None = None

    def __post_init__(self) -> None:
        check_queue(self.queue)
        for name in ("running", "running_per_key", "burst"):
            _check_limit(name, getattr(self, name))
        for name in ("fair", "ordered"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r:.50}")
        if self.on_dead not in get_args(OnDead):
            raise ConfigError(f"on_dead must be 'hold' or 'skip', not {self.on_dead!r}")
        if not isinstance(self.weights, Mapping):
            raise ConfigError(f"weights must map keys to numbers, not {self.weights!r:.50}")
        for key, weight in self.weights.items():
            _check_weight(key, weight)
        _check_aging(self.aging_seconds)
        if contradiction := next(_contradictions(self), None):
            raise ConfigError(f"queue {self.queue}: {contradiction}")

    @property
    def limits(self) -> tuple[object, ...]:
        """Rules that limit starts; falsy where unlimited."""
        return self.running, self.running_per_key, self.rate, self.rate_per_key, self.burst, self.ordered

    @classmethod
    def from_row(cls, row: RulesRow) -> Rules:
        """Convert a row of `queues`, or raise ConfigError."""
        values = row._asdict()
        del values["error"]
        rates = {name: _rate(values[name]) for name in ("rate", "rate_per_key")}
        try:
            return cls(**{**values, **rates})
        except ConfigError as error:
            # A hand-written row.
            what = str(error).removeprefix(f"queue {row.queue}: ")
            advice = f"`drain queue unset {row.queue}` removes its rules"
            raise ConfigError(f"queue {row.queue}: {what}; {advice}") from None

    @property
    def for_keys(self) -> bool:
        """True if a rule looks at keys."""
        return bool(self.running_per_key or self.rate_per_key or self.fair or self.ordered)

    @property
    def looks_at_running(self) -> bool:
        """True if a rule needs running jobs, unknown in forward mode."""
        return bool(self.running or self.running_per_key or self.ordered)

    def require_tracked(self, forward_queues: Collection[str]) -> None:
        """Raise ConfigError for rules that forward mode ignores."""
        if self.queue in forward_queues and self.looks_at_running:
            raise ConfigError(
                f"queue {self.queue}: its jobs leave PostgreSQL when they are pushed (DRAIN_FORWARD_QUEUES), so "
                "running, running_per_key and ordered need tracked jobs"
            )

    @property
    def limits_anything(self) -> bool:
        """True if more than priority chooses rows."""
        return bool(self.running or self.rate or self.for_keys or self.aging_seconds)

    def as_texts(self) -> dict[str, Any]:
        """Return rules for JSON and TOML, without the queue."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "queue"}
        return {
            name: str(value) if isinstance(value, Rate) else dict(value) if name == "weights" else value
            for name, value in values.items()
        }


def check_queue(queue: object) -> str:
    """Return a valid queue name, or raise ConfigError."""
    if not isinstance(queue, str) or not QUEUE_NAME.fullmatch(queue):
        raise ConfigError(
            f"'{visible(str(queue))[:50]}' is not a queue name: {QUEUE_CHARACTERS}, at most 100 of them"
        )
    return queue


def check_key(key: object) -> str:
    """Return a valid key, or raise ConfigError; an integer becomes its decimal digits, as when staged."""
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(int(key))
    if not isinstance(key, str):
        raise ConfigError(f"key must be a string or a whole number, not {key!r:.50}")
    if not 1 <= len(key) <= LONGEST_KEY:
        raise ConfigError(f"key must have 1 to {LONGEST_KEY} characters, not {len(key)}")
    if re.search("[\0\ud800-\udfff]", key):
        raise ConfigError(
            f"key contains a NUL or lone surrogate, which PostgreSQL cannot store: {key!a:.100}"
        )
    return key


def _rate(text: str | None) -> Rate | None:
    return None if text is None else Rate.parse(text)


def _is_a_number(value: object) -> bool:
    # True is an int.
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _check_limit(name: str, value: object) -> None:
    is_whole = isinstance(value, int) and _is_a_number(value)
    if value is not None and not (is_whole and 1 <= value <= _LARGEST_LIMIT):  # type: ignore[operator]
        raise ConfigError(f"{name} must be a whole number from 1 to {_LARGEST_LIMIT}, not {value!r:.50}")


def _check_weight(key: object, weight: Any) -> None:
    check_key(key)
    if not _is_a_number(weight) or not _SMALLEST_WEIGHT <= weight <= _LARGEST_WEIGHT:
        raise ConfigError(
            f"the weight of a key must be a number from {_SMALLEST_WEIGHT} to {_LARGEST_WEIGHT}, "
            f"not {weight!r:.50}"
        )


def _check_aging(seconds: Any) -> None:
    if seconds is not None and not (_is_a_number(seconds) and 0 < seconds <= _LONGEST_AGING_SECONDS):
        raise ConfigError(f"aging must be a time above 0 and at most a year, not {seconds!r:.50} seconds")


def _contradictions(rules: Rules) -> Iterator[str]:
    if rules.running and rules.running_per_key and rules.running_per_key > rules.running:
        yield (
            f"running_per_key ({rules.running_per_key}) exceeds running ({rules.running}), "
            "so it would never be reached"
        )
    if rules.ordered and rules.running_per_key and rules.running_per_key > 1:
        yield f"ordered runs one job of a key at a time; running_per_key {rules.running_per_key} would run more"
    if rules.weights and not rules.fair:
        yield "weights need fair: without it, keys do not take turns"
    if rules.burst and not (rules.rate or rules.rate_per_key):
        yield "burst needs a rate, of the queue or of each key"
    for rate in (rules.rate, rules.rate_per_key):
        if rules.burst and rate and rules.burst * rate.seconds > rate.count * _LONGEST_REFILL_SECONDS:
            most = int(rate.count * _LONGEST_REFILL_SECONDS / rate.seconds)
            yield f"a burst of {rules.burst} takes longer than a year to fill at {rate}: at most {most} is possible"
    if rules.on_dead == "skip" and not rules.ordered:
        yield "on_dead needs ordered: without it, no job waits for another of its key"
    if rules.aging_seconds and rules.for_keys:
        yield (
            "aging orders a queue by time, and cannot be combined with fair, ordered, running_per_key or "
            "rate_per_key, which order it by key"
        )
