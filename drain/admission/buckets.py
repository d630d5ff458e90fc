"""Token buckets of a queue, or of each key.

A bucket holds up to `burst` tokens, and refills at its rate. A delivered job holds one back until its claim takes it.
A bucket is two numbers: the time when it is full, and the tokens held back. Full buckets are forgotten: memory depends
on busy keys only.

Times are seconds by the database's clock.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from drain.admission.rules import Rate
from drain.tables.rules import burst_of

# From this many on, full buckets are dropped.
_MANY = 1000
# Rounding may give this many tokens or nanoseconds: times since 1970 are not more exact.
_ROUNDING = 1e-6
_ROUNDING_NANOSECONDS = 1000
_SECOND = 1_000_000_000

_Item = TypeVar("_Item")


class Buckets:
    """Buckets with one rate, per key or one named ''; `burst` None is one second's tokens, at least one."""

    def __init__(self, rate: Rate, burst: int | None, *, per_key: bool = False) -> None:
        self.burst = burst_of(burst, rate.per_second)
        self._per_key = per_key
        # Whole nanoseconds, as below: sums of fractions would drift by tokens a minute at high rates.
        self._interval = math.ceil(_SECOND / rate.per_second)
        self._rounding = min(_ROUNDING, _ROUNDING_NANOSECONDS / self._interval)
        # When each bucket is full; and all others.
        self._full_at: dict[str, int] = {}
        self._others_full_at = 0
        self._held: Counter[str] = Counter()
        self._forget_above = _MANY

    @property
    def parameters(self) -> tuple[bool, int, int]:
        """Settings; equal ones always hold the same tokens."""
        return self._per_key, self._interval, self.burst

    def by_bucket(self, items: Iterable[tuple[str, _Item]]) -> dict[str, list[_Item]]:
        """Group items, by key or '', by bucket."""
        groups: defaultdict[str, list[_Item]] = defaultdict(list)
        for key, item in items:
            if (name := self._name(key)) is not None:
                groups[name].append(item)
        return groups

    def _name(self, key: str) -> str | None:
        return (key or None) if self._per_key else ""

    @property
    def memory_seconds(self) -> float:
        """Time to fill an empty bucket; older starts no longer count."""
        return self.burst * self._interval / _SECOND

    def tokens(self, key: str, now: float) -> int:
        """Count the tokens not held back."""
        return max(0, math.floor(self.burst - self._missing(key, now) + self._rounding) - self._held[key])

    def hold(self, key: str) -> None:
        """Hold back a delivered job's token."""
        if (name := self._name(key)) is not None:
            self._held[name] += 1

    def hold_only(self, held: Mapping[str, int]) -> None:
        """Set the tokens held back; 0 for others."""
        self._held = Counter(held)

    def begin(self, key: str, begun: Sequence[float], now: float) -> None:
        """Take tokens for jobs begun since the last call; earliest first."""
        for at in begun:
            self._full_at[key] = max(_nanoseconds(at), self._full_at_of(key)) + self._interval
        if len(self._full_at) > self._forget_above:
            self._full_at = {name: at for name, at in self._full_at.items() if at > _nanoseconds(now)}
            self._forget_above = max(_MANY, 2 * len(self._full_at))

    def next_token_at(self, key: str, now: float) -> float:
        """Time of a bucket's next token, if all jobs that hold one back begin now."""
        lacking = self._held[key] - self.burst + 1
        at = max(_nanoseconds(now), self._full_at_of(key)) + lacking * self._interval
        return max(now, at / _SECOND)

    def is_held(self, key: str) -> bool:
        """Return whether only starts, not time, bring a token."""
        return self._held[key] >= self.burst

    def empty(self, now: float) -> list[str]:
        """List buckets without tokens."""
        return [key for key in self._full_at.keys() | self._held if not self.tokens(key, now)]

    def refill(self, taken: Mapping[str, int], since: float, now: float) -> None:
        """Fill the buckets from starts since a time, so that a new leader exceeds no rate.

        At that time, with unknown contents, they count as empty.
        """
        capacity = self.burst * self._interval
        gained = max(0, _nanoseconds(now) - _nanoseconds(since))
        missing = max(0, capacity - gained)
        self._others_full_at = _nanoseconds(now) + missing
        self._full_at = {
            key: _nanoseconds(now) + min(capacity, missing + count * self._interval)
            for key, count in taken.items()
        }

    def forgive(self, now: float) -> None:
        """Limit a bucket's missing tokens to its size."""
        empty = _nanoseconds(now) + self.burst * self._interval
        self._full_at = {key: min(at, empty) for key, at in self._full_at.items()}

    def is_full(self, now: float) -> bool:
        """Return whether no bucket lacks or holds back a token."""
        return not self._held.total() and self.full_at <= _nanoseconds(now)

    @property
    def full_at(self) -> int:
        """Time in nanoseconds when all are full if nothing begins."""
        return max(max(self._full_at.values(), default=0), self._others_full_at)

    def owe(self, earlier: Buckets, now: float) -> None:
        """Fill no bucket above its level under an earlier rate: the tables may have lost starts."""
        if earlier._per_key != self._per_key:
            return
        self._others_full_at = max(self._others_full_at, self._owed(earlier._others_full_at, earlier, now))
        for key, full_at in earlier._full_at.items():
            self._full_at[key] = max(self._full_at_of(key), self._owed(full_at, earlier, now))

    def _owed(self, full_at: int, earlier: Buckets, now: float) -> int:
        tokens = max(0, full_at - _nanoseconds(now)) / earlier._interval
        return _nanoseconds(now) + math.ceil(min(self.burst, tokens) * self._interval)

    def _full_at_of(self, key: str) -> int:
        return self._full_at.get(key, self._others_full_at)

    def _missing(self, key: str, now: float) -> float:
        return max(0, self._full_at_of(key) - _nanoseconds(now)) / self._interval

    @property
    def remembered(self) -> int:
        """Number of buckets not known to be full."""
        return len(self._full_at)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _SECOND)
