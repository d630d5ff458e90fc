"""Token buckets: how many jobs of a queue, or of each of its keys, may begin now.

A bucket holds up to `burst` tokens and gains them at its rate; each job that begins takes one. A bucket is kept as one
number: the time at which it will be full. Full buckets are forgotten, so that memory depends on the keys that are busy.

All times are seconds by the database's clock. The caller chooses the zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from drain.admission.rules import Rate
from drain.tables.rules import burst_of

# Number of buckets from which on those that are full are looked for.
_MANY = 1000
# Part of a token that rounding may cost.
_ROUNDING = 1e-6


class Buckets:
    """Buckets with one rate: one for each key, or a single one.

    Args:
        rate: Number of tokens that a bucket gains in a time.
        burst: Number of tokens that a bucket holds; None for those of one second, at least one.
    """

    def __init__(self, rate: Rate, burst: int | None) -> None:
        self.burst = burst_of(burst, rate.per_second)
        self._interval = 1 / rate.per_second
        # Time at which a bucket is full; and for buckets that are not here.
        self._full_at: dict[str, float] = {}
        self._others_full_at = 0.0
        self._forget_above = _MANY

    @property
    def memory_seconds(self) -> float:
        """Time in which an empty bucket becomes full: what was taken before that no longer counts."""
        return self.burst * self._interval

    def tokens(self, key: str, now: float) -> int:
        """Count the tokens of a bucket."""
        missing = max(0.0, self._full_at.get(key, self._others_full_at) - now) / self._interval
        return max(0, math.floor(self.burst - missing + _ROUNDING))

    def take(self, key: str, count: int, now: float) -> None:
        """Take tokens out of a bucket; more than there are leave it in debt."""
        full_at = max(now, self._full_at.get(key, self._others_full_at))
        self._full_at[key] = full_at + count * self._interval
        if len(self._full_at) > self._forget_above:
            self._full_at = {name: at for name, at in self._full_at.items() if at > now}
            self._forget_above = max(_MANY, 2 * len(self._full_at))

    def reserve(self, key: str, count: int, now: float) -> None:
        """Hold back so many tokens of a bucket, for jobs that were delivered and have not begun."""
        full_at = now + count * self._interval
        if full_at > self._full_at.get(key, self._others_full_at):
            self._full_at[key] = full_at

    def next_token_at(self, key: str, now: float) -> float:
        """Return the time at which a bucket has at least one token."""
        return max(now, self._full_at.get(key, self._others_full_at) - (self.burst - 1) * self._interval)

    def empty(self, now: float) -> list[str]:
        """List the buckets that have no token."""
        return [key for key in self._full_at if not self.tokens(key, now)]

    def refill(self, taken: Mapping[str, int], since: float, now: float) -> None:
        """Fill the buckets as they may have been, from what was taken: a new leader exceeds no rate.

        It is not known how full a bucket was at the beginning of that time, so it counts as empty then.

        Args:
            taken: Number of tokens that were taken from each bucket.
            since: Beginning of the time that `taken` covers.
            now: Time at present.
        """
        gained = max(0.0, now - since)
        missing = max(0.0, self.memory_seconds - gained)
        self._others_full_at = now + missing
        self._full_at = {
            key: now + min(self.memory_seconds, missing + count * self._interval)
            for key, count in taken.items()
        }

    @property
    def remembered(self) -> int:
        """Number of the buckets that are not known to be full."""
        return len(self._full_at)
