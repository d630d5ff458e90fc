"""Allowances: how many more jobs of a queue, and of each of its keys, may begin now, and what keeps a key back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import chain
from time import monotonic

from drain.admission.buckets import Buckets
from drain.admission.rules import Rules
from drain.admission.running import RunningJobs
from drain.admission.sources import UNKEYED
from drain.database.postgres import Connection
from drain.tables import running

_NO_LIMIT = 1_000_000_000
# Time for which room is kept for retries: longer than the pause between two rounds of redelivery.
_KEPT_SECONDS = 1.5
# Upper bound of the finished jobs that are read to fill the buckets.
_MOST_BEGUN = 300_000
# Upper bound of the time between two looks at delivered jobs.
_LONGEST_LOOK_SECONDS = 3600.0
# Name of the only bucket of the queue.
_QUEUE = ""


class DatabaseClock:
    """Time by the database's clock, from one look at it and the time that has passed since."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._looked_at = float("-inf")

    def set(self, seconds: float) -> None:
        """Note the time that the database has just said."""
        self._looked_at = monotonic()
        self._ahead = seconds - self._looked_at

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return monotonic() + self._ahead

    def monotonic(self, seconds: float) -> float:
        """Return the time of this process at which the database's clock shows this time."""
        return seconds - self._ahead

    @property
    def age_seconds(self) -> float:
        """Time since the look."""
        return monotonic() - self._looked_at


class Allowances:
    """Limits, rates, pauses and holds of one queue.

    Args:
        rules: Rules of the queue.
        running_jobs: Its running jobs.
        clock: Time by the database's clock.

    Attributes:
        bucket: The queue's bucket, if it has a rate.
        key_buckets: Those of its keys.
        one_at_a_time: A job that is given up counts as one that begins, since those behind it may have to wait.
        paused: Paused keys, each with the end of its pause; None for no end.
        held: Keys of an ordered queue whose staged jobs wait for a dead job, or for one that waits to be tried again.
        is_filled: The buckets have been filled; see `refill`.
    """

    # One thing: all that keeps a key or a queue back; each method is one question about it, or one change.

    def __init__(self, rules: Rules, running_jobs: RunningJobs, clock: DatabaseClock) -> None:
        self.bucket = Buckets(rules.rate, rules.burst) if rules.rate else None
        self.key_buckets = Buckets(rules.rate_per_key, rules.burst) if rules.rate_per_key else None
        self.one_at_a_time = rules.ordered
        self.paused: Mapping[str, datetime | None] = {}
        self.held: set[str] = set()
        self._rules = rules
        self._running = running_jobs
        self._clock = clock
        self._per_key = 1 if rules.ordered else rules.running_per_key
        # Keys of due retries that have to wait, and until when room is kept for them.
        self._kept: Collection[str] = frozenset()
        self._kept_until = 0.0
        # Until then the next place is for a staged job, since a retry had the last one.
        self._staged_until = 0.0
        self.is_filled = False
        self._earlier: Allowances | None = None
        self._forgives = False
        # Jobs that were delivered and not claimed at the last look, or have been delivered since, each with its key.
        self._unclaimed: dict[int, str] = {}
        self._unclaimed_since = 0

    def keep_buckets_of(self, earlier: Allowances) -> None:
        """Go on with the buckets of earlier rules of the queue, or with what is missing in them under other rates."""
        rates = (self._rules.rate, self._rules.rate_per_key, self._rules.burst)
        if rates != (earlier._rules.rate, earlier._rules.rate_per_key, earlier._rules.burst):
            self.owe(earlier)
            return
        self.bucket, self.key_buckets = earlier.bucket, earlier.key_buckets
        self.is_filled, self._forgives, self._earlier = earlier.is_filled, earlier._forgives, earlier._earlier
        self._unclaimed, self._unclaimed_since = earlier._unclaimed, earlier._unclaimed_since

    def owe(self, earlier: Allowances) -> None:
        """Let no bucket be filled above what it had under earlier rules: the tables may have lost jobs since."""
        self._earlier = earlier if earlier.is_filled and earlier.has_rates else earlier._earlier

    @property
    def is_full(self) -> bool:
        """True if no bucket, nor one of earlier rules, lacks a token or holds one back."""
        now = self._clock.now()
        buckets = [each for each in (self.bucket, self.key_buckets) if each]
        return all(each.is_full(now) for each in buckets) and (self._earlier is None or self._earlier.is_full)

    def forgive_after_look(self) -> None:
        """Expect a last look at jobs that were delivered under other rules and are called back now.

        Those that were claimed before have begun all the same; it would not help to stop the queue for them.
        """
        self._forgives = True

    @property
    def looks_at_running(self) -> bool:
        """True if it matters how many jobs run."""
        return bool(self._rules.running or self._per_key)

    def keep_for_retries(self, keys: Collection[str]) -> None:
        """Keep room for due retries of these keys for a while, so that staged jobs do not take all of it."""
        self._kept = frozenset(keys)
        self._kept_until = monotonic() + _KEPT_SECONDS

    def of_queue(self) -> int:
        """Count the staged jobs of the queue that may begin."""
        kept = 0
        if self._kept and monotonic() < self._kept_until:
            # A retry whose own key is full can use no place of the queue.
            could_begin = sum(self.of_retries(key) > 0 for key in self._kept)
            kept = min(could_begin, max(1, (self._rules.running or 0) // 2))
        free = self._free()
        return max(free - kept, min(free, self._is_turn_of_staged))

    def retries_of_queue(self, *, staged_wait: bool) -> int:
        """Count the due retries of the queue that may begin.

        Args:
            staged_wait: Staged jobs wait that may begin: they get every other place.
        """
        return max(0, self._free() - (staged_wait and self._is_turn_of_staged))

    def retries_began(self) -> None:
        """Note that retries have begun: the next place is for a staged job."""
        self._staged_until = monotonic() + _KEPT_SECONDS

    def staged_began(self) -> None:
        """Note that staged jobs have begun: the next place is for a retry."""
        self._staged_until = 0.0

    @property
    def _is_turn_of_staged(self) -> bool:
        return monotonic() < self._staged_until

    def _free(self) -> int:
        free = self._rules.running - self._running.total if self._rules.running else _NO_LIMIT
        return max(0, min(free, self.bucket.tokens(_QUEUE, self._clock.now()) if self.bucket else free))

    def of_key(self, key: str) -> int:
        """Count the staged jobs of a key that may begin, if the queue lets them; without a key there are no limits."""
        if key == UNKEYED:
            return _NO_LIMIT
        kept = self._is_kept(key) and not self._is_turn_of_staged
        return 0 if key in self.held else max(0, self.of_retries(key) - kept)

    def of_retries(self, key: str) -> int:
        """Count the waiting retries of a key that may begin; in an ordered queue they hold the key for themselves."""
        if key == UNKEYED:
            return _NO_LIMIT
        free = _NO_LIMIT if self._per_key is None else self._per_key - self._running.of_key(key)
        return 0 if free <= 0 or self._is_paused(key) else min(free, self._tokens(key))

    def next_of_queue_at(self) -> float | None:
        """Return when the queue's bucket has a token, by this process' clock; None if it is not a token that lacks."""
        now = self._clock.now()
        if self.bucket and not self.bucket.tokens(_QUEUE, now):
            return self._clock.monotonic(self.bucket.next_token_at(_QUEUE, now))
        return None

    @property
    def waits_for_claims(self) -> bool:
        """True if the queue gets no token before a worker claims a job."""
        return self.bucket is not None and self.bucket.is_held(_QUEUE)

    def next_of_key_at(self, key: str) -> float | None:
        """Return when to look at a key again that may begin nothing; None if only the end of a job or hold can help."""
        if key in self.held or (self._per_key is not None and self._running.of_key(key) >= self._per_key):
            return None
        until = self.paused.get(key)
        if until is not None and self._is_paused(key):
            return self._clock.monotonic(until.timestamp())
        now = self._clock.now()
        if self.key_buckets and not self.key_buckets.tokens(key, now):
            return self._clock.monotonic(self.key_buckets.next_token_at(key, now))
        # The retry for which room is kept may never begin: it may be cancelled, or go to another queue.
        return self._kept_until if self._is_kept(key) else None

    def retries_keep(self) -> list[str]:
        """List the keys whose retries may not begin."""
        full = [] if self._per_key is None else self._running.keys_with(self._per_key)
        now = self._clock.now()
        empty = self.key_buckets.empty(now) if self.key_buckets else []
        return [*full, *filter(self._is_paused, self.paused), *empty]

    @property
    def has_rates(self) -> bool:
        """True if there are buckets."""
        return bool(self.bucket or self.key_buckets)

    def take(self, job_id: int, key: str) -> None:
        """Hold tokens back for a job of a key that is being delivered."""
        if not self.has_rates:
            return
        if job_id in self._unclaimed:
            # Claimed, ended and back again since the last look.
            self._charge({job_id: self._unclaimed[job_id]}, {})
        self._unclaimed[job_id] = key
        if self.bucket:
            self.bucket.hold(_QUEUE)
        if self.key_buckets and key:
            self.key_buckets.hold(key)

    def settle(self, connection: Connection) -> bool:
        """Charge jobs that a worker has claimed; those that still wait for one may all begin at once, however late.

        Returns:
            True if jobs that waited for a worker no longer do.
        """
        if not self._unclaimed:
            return self._forgive()
        earlier = self._unclaimed
        self._look_at_unclaimed(connection)
        claimed = {job_id: key for job_id, key in earlier.items() if job_id not in self._unclaimed}
        if not claimed:
            return self._forgive()
        # Always asked: the job may have been called back without a claim, and our clock may be behind.
        memory = max(each.memory_seconds for each in (self.bucket, self.key_buckets) if each)
        times = running.claimed_at(connection, claimed, memory + _LONGEST_LOOK_SECONDS)
        self._charge(claimed, times)
        self._forgive()
        return True

    def _forgive(self) -> bool:
        if self._forgives:
            for buckets in (self.bucket, self.key_buckets):
                if buckets:
                    buckets.forgive(self._clock.now())
        self._forgives = False
        return False

    def _charge(self, claimed: Mapping[int, str], times: Mapping[int, float | None]) -> None:
        """Charge these jobs at their times; at present those without one, which may have begun."""
        now = self._clock.now()
        begun = defaultdict(list)
        for job_id, key in claimed.items():
            if (at := times.get(job_id, now)) is not None:
                begun[key].append(at)
        if self.bucket:
            self.bucket.begin(_QUEUE, sorted(chain.from_iterable(begun.values())), now)
        if self.key_buckets:
            for key in filter(None, begun):
                self.key_buckets.begin(key, sorted(begun[key]), now)

    def _look_at_unclaimed(self, connection: Connection) -> None:
        self._unclaimed, self._unclaimed_since = running.unclaimed(
            connection, self._rules.queue, self._unclaimed_since
        )
        if self.bucket:
            self.bucket.hold_only({_QUEUE: len(self._unclaimed)})
        if self.key_buckets:
            self.key_buckets.hold_only(Counter(filter(None, self._unclaimed.values())))

    def refill(self, connection: Connection) -> None:
        """Fill the buckets from the attempts that the tables show as begun lately; once."""
        if self.is_filled:
            return
        self.is_filled = True
        if not self.has_rates:
            return
        # First: a job that is claimed in between counts twice, and not never.
        self._look_at_unclaimed(connection)
        earlier = self._earlier
        if earlier:
            earlier.settle(connection)
        now = self._clock.now()
        for buckets, owing in (
            (self.bucket, earlier and earlier.bucket),
            (self.key_buckets, earlier and earlier.key_buckets),
        ):
            if not buckets:
                continue
            seconds = buckets.memory_seconds
            counts, covered = running.begun(connection, self._rules.queue, seconds, _MOST_BEGUN)
            if buckets is self.bucket:
                counts = {_QUEUE: sum(counts.values())}
            buckets.refill(counts, now - covered, now)
            if owing:
                buckets.owe(owing, now)
        self._earlier = None

    def _is_kept(self, key: str) -> bool:
        return key in self._kept and monotonic() < self._kept_until

    def _tokens(self, key: str) -> int:
        return self.key_buckets.tokens(key, self._clock.now()) if self.key_buckets else _NO_LIMIT

    def _is_paused(self, key: str) -> bool:
        if key not in self.paused:
            return False
        until = self.paused[key]
        return until is None or until.timestamp() > self._clock.now()
