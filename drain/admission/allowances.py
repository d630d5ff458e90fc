"""Allowances of a queue and of each key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from time import monotonic

from drain.admission.rates import NO_LIMIT, DatabaseClock, Rates
from drain.admission.rules import Rules
from drain.admission.running import RunningJobs
from drain.admission.sources import UNKEYED

# Time to keep room for retries: longer than a pause of redelivery.
_KEPT_SECONDS = 1.5


class Allowances:
    """Limits, rates, pauses and holds of one queue.

    Attributes:
        one_at_a_time: A buried job counts as begun: those behind it may have to wait.
        paused: Paused keys with the end of each pause, or None.
        held: Keys of an ordered queue held by a dead job or a waiting retry.
    """

    # One thing: all that holds back a key or queue.

    def __init__(self, rules: Rules, running_jobs: RunningJobs, clock: DatabaseClock) -> None:
        self.rates = Rates(rules, clock)
        self.one_at_a_time = rules.ordered
        self.paused: Mapping[str, datetime | None] = {}
        self.held: set[str] = set()
        self._rules = rules
        self._running = running_jobs
        self._clock = clock
        self._per_key = 1 if rules.ordered else rules.running_per_key
        # Keys of waiting due retries; and how long room is kept.
        self._kept: Collection[str] = frozenset()
        self._kept_until = 0.0
        # Until then a staged job is next: a retry was last.
        self._staged_until = 0.0

    def keep_rates_of(self, earlier: Allowances) -> None:
        """Continue earlier buckets, or under other rates their missing tokens."""
        if self.rates.are_those_of(earlier.rates):
            self.rates = earlier.rates
        else:
            self.rates.go_on_from(earlier.rates)

    @property
    def looks_at_running(self) -> bool:
        """True if running jobs are limited."""
        return bool(self._rules.running or self._per_key)

    def keep_for_retries(self, keys: Collection[str]) -> None:
        """Keep room for these keys' retries for a while."""
        self._kept = frozenset(keys)
        self._kept_until = monotonic() + _KEPT_SECONDS

    def of_queue(self) -> int:
        """Count staged jobs that may begin."""
        kept = 0
        if self._kept and monotonic() < self._kept_until:
            # A retry whose own key is full cannot use a place.
            could_begin = sum(self.of_retries(key) > 0 for key in self._kept)
            kept = min(could_begin, max(1, (self._rules.running or 0) // 2))
        free = self._free()
        return max(free - kept, min(free, self._is_turn_of_staged))

    def retries_of_queue(self, *, staged_wait: bool) -> int:
        """Count due retries that may begin; if `staged_wait`, staged jobs get every other place."""
        return max(0, self._free() - (staged_wait and self._is_turn_of_staged))

    def retries_began(self) -> None:
        """Give the next place to a staged job."""
        self._staged_until = monotonic() + _KEPT_SECONDS

    def staged_began(self) -> None:
        """Give the next place to a retry."""
        self._staged_until = 0.0

    @property
    def _is_turn_of_staged(self) -> bool:
        return monotonic() < self._staged_until

    def _free(self) -> int:
        free = self._rules.running - self._running.total if self._rules.running else NO_LIMIT
        return max(0, min(free, self.rates.of_queue()))

    def of_key(self, key: str) -> int:
        """Count the key's staged jobs that may begin."""
        if key == UNKEYED:
            return NO_LIMIT
        kept = self._is_kept(key) and not self._is_turn_of_staged
        return 0 if key in self.held else max(0, self.of_retries(key) - kept)

    def of_retries(self, key: str) -> int:
        """Count the key's retries that may begin; in an ordered queue they hold it."""
        if key == UNKEYED:
            return NO_LIMIT
        free = NO_LIMIT if self._per_key is None else self._per_key - self._running.of_key(key)
        return 0 if free <= 0 or self._is_paused(key) else min(free, self.rates.of_key(key))

    def next_of_key_at(self, key: str) -> float | None:
        """Time to look again at a blocked key; None if only a claim or a job's end helps."""
        if key in self.held or (self._per_key is not None and self._running.of_key(key) >= self._per_key):
            return None
        until = self.paused.get(key)
        if until is not None and self._is_paused(key):
            return self._clock.monotonic(until.timestamp())
        if (at := self.rates.next_of_key_at(key)) is not None:
            return at
        # That retry may never begin, if cancelled or moved.
        return self._kept_until if self._is_kept(key) else None

    def retries_keep(self) -> list[str]:
        """List keys whose retries may not begin."""
        full = [] if self._per_key is None else self._running.keys_with(self._per_key)
        return [*full, *filter(self._is_paused, self.paused), *self.rates.empty_keys()]

    def _is_kept(self, key: str) -> bool:
        return key in self._kept and monotonic() < self._kept_until

    def _is_paused(self, key: str) -> bool:
        if key not in self.paused:
            return False
        until = self.paused[key]
        return until is None or until.timestamp() > self._clock.now()
