"""Token buckets: how many jobs of a queue, or of each of its keys, may be delivered now.

A bucket holds up to `burst` tokens and gains them at its rate; each job takes one when a worker claims it. A job that
is delivered holds one back until then, however late that is. A bucket is kept as two numbers: the time at which it will
be full, and the tokens that are held back. Full buckets are forgotten, so that memory depends on the busy keys alone.

All times are seconds by the database's clock. The caller chooses the zero.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from drain.admission.rules import Rate
from drain.tables.rules import burst_of

# Number of buckets from which on those that are full are looked for.
_MANY = 1000
# Part of a token that rounding may give away, and the most nanoseconds: times since 1970 are not more exact.
_ROUNDING = 1e-6
_ROUNDING_NANOSECONDS = 1000
_SECOND = 1_000_000_000

_Item = TypeVar("_Item")


class Buckets:
    """Buckets with one rate: one for each key, or a single one.

    Args:
        rate: Number of tokens that a bucket gains in a time.
        burst: Number of tokens that a bucket holds; None for those of one second, at least one.
        per_key: There is a bucket for each key, of its name, and none for jobs without one. Otherwise there is one, ''.
    """

    def __init__(self, rate: Rate, burst: int | None, *, per_key: bool = False) -> None:
        self.burst = burst_of(burst, rate.per_second)
        self._per_key = per_key
        # In whole nanoseconds, as are all times below: sums of fractions would drift, by tokens a minute at high rates.
        self._interval = math.ceil(_SECOND / rate.per_second)
        self._rounding = min(_ROUNDING, _ROUNDING_NANOSECONDS / self._interval)
        # Time at which a bucket is full; and for buckets that are not here.
        self._full_at: dict[str, int] = {}
        self._others_full_at = 0
        self._held: Counter[str] = Counter()
        self._forget_above = _MANY

    @property
    def parameters(self) -> tuple[bool, int, int]:
        """Settings; buckets with the same ones always hold the same."""
        return self._per_key, self._interval, self.burst

    def by_bucket(self, items: Iterable[tuple[str, _Item]]) -> dict[str, list[_Item]]:
        """Group items of jobs, each with the job's key or '', by the names of their buckets."""
        groups: defaultdict[str, list[_Item]] = defaultdict(list)
        for key, item in items:
            if (name := self._name(key)) is not None:
                groups[name].append(item)
        return groups

    def _name(self, key: str) -> str | None:
        return (key or None) if self._per_key else ""

    @property
    def memory_seconds(self) -> float:
        """Time in which an empty bucket becomes full: what was taken before that no longer counts."""
        return self.burst * self._interval / _SECOND

    def tokens(self, key: str, now: float) -> int:
        """Count the tokens of a bucket that nothing holds back."""
        return max(0, math.floor(self.burst - self._missing(key, now) + self._rounding) - self._held[key])

    def hold(self, key: str) -> None:
        """Hold a token back for a job of a key, or of '', that is delivered."""
        if (name := self._name(key)) is not None:
            self._held[name] += 1

    def hold_only(self, held: Mapping[str, int]) -> None:
        """Set the number of tokens that each bucket holds back; 0 for those that are not named."""
        self._held = Counter(held)

    def begin(self, key: str, begun: Sequence[float], now: float) -> None:
        """Take a token for each job that has begun since the last call, at the time at which it began.

        Args:
            key: Name of the bucket.
            begun: Begin times, the earliest first.
            now: Time at present.
        """
        for at in begun:
            self._full_at[key] = max(_nanoseconds(at), self._full_at_of(key)) + self._interval
        if len(self._full_at) > self._forget_above:
            self._full_at = {name: at for name, at in self._full_at.items() if at > _nanoseconds(now)}
            self._forget_above = max(_MANY, 2 * len(self._full_at))

    def next_token_at(self, key: str, now: float) -> float:
        """Return the time at which a bucket may have a token next, if all jobs begin now that hold one back."""
        lacking = self._held[key] - self.burst + 1
        at = max(_nanoseconds(now), self._full_at_of(key)) + lacking * self._interval
        return max(now, at / _SECOND)

    def is_held(self, key: str) -> bool:
        """Return True if no token comes with time, but only as jobs begin that hold one back."""
        return self._held[key] >= self.burst

    def empty(self, now: float) -> list[str]:
        """List the buckets that have no token."""
        return [key for key in self._full_at.keys() | self._held if not self.tokens(key, now)]

    def refill(self, taken: Mapping[str, int], since: float, now: float) -> None:
        """Fill the buckets as they may have been, from what was taken: a new leader exceeds no rate.

        It is not known how full a bucket was at the beginning of that time, so it counts as empty then.

        Args:
            taken: Number of tokens that were taken from each bucket.
            since: Beginning of the time that `taken` covers.
            now: Time at present.
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
        """Let no bucket lack more tokens than it holds."""
        empty = _nanoseconds(now) + self.burst * self._interval
        self._full_at = {key: min(at, empty) for key, at in self._full_at.items()}

    def is_full(self, now: float) -> bool:
        """Return True if no bucket lacks a token, and none holds one back."""
        return not self._held.total() and self.full_at <= _nanoseconds(now)

    @property
    def full_at(self) -> int:
        """Time at which all buckets are full if nothing begins until then, in nanoseconds."""
        return max(max(self._full_at.values(), default=0), self._others_full_at)

    def owe(self, earlier: Buckets, now: float) -> None:
        """Let no bucket be fuller than it was under an earlier rate of the same kind.

        The tables may have lost what has begun.
        """
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
        """Number of the buckets that are not known to be full."""
        return len(self._full_at)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _SECOND)
