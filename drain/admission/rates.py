"""Rates of a queue and of each key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import nlargest
from operator import attrgetter
from time import monotonic

from drain.admission.buckets import Buckets
from drain.admission.rules import Rules
from drain.database.postgres import Connection
from drain.tables import running
from drain.tables.running import LastClaim, Unclaimed

NO_LIMIT = 1_000_000_000
# Finished jobs read to fill the buckets.
_MOST_BEGUN = 300_000
# Overlap of looks at delivered jobs, in case the database's clock was set.
_CLOCK_JUMP_SECONDS = 3600.0
# Earlier rates, of each kind.
_MOST_EARLIER = 8


class DatabaseClock:
    """Database's clock, extrapolated from the last look."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._looked_at = float("-inf")

    def set(self, seconds: float) -> None:
        """Set the time just read."""
        self._looked_at = monotonic()
        self._ahead = seconds - self._looked_at

    def now(self) -> float:
        """Seconds since 1970."""
        return monotonic() + self._ahead

    def monotonic(self, seconds: float) -> float:
        """Convert a database time to `monotonic()`."""
        return seconds - self._ahead

    @property
    def age_seconds(self) -> float:
        """Seconds since the look."""
        return monotonic() - self._looked_at


class Rates:
    """Buckets of one queue. A job holds a token back from delivery on, and takes it when claimed.

    Buckets of earlier rules are charged until full, so changing a rate back and forth does not exceed it.
    """

    # One thing: buckets and the jobs that hold tokens back.
    def __init__(self, rules: Rules, clock: DatabaseClock) -> None:
        self.bucket = Buckets(rules.rate, rules.burst) if rules.rate else None
        self.key_buckets = (
            Buckets(rules.rate_per_key, rules.burst, per_key=True) if rules.rate_per_key else None
        )
        self.is_filled = False
        self._queue = rules.queue
        self._clock = clock
        self._in_force = [each for each in (self.bucket, self.key_buckets) if each]
        # Latest first.
        self._earlier: list[Buckets] = []
        self._forgives = False
        # Delivered jobs unclaimed at the last look, or delivered since.
        self._unclaimed: dict[int, Unclaimed] = {}
        self._unclaimed_since = 0
        self._looked_at = monotonic()

    def __bool__(self) -> bool:
        return bool(self._in_force)

    def are_those_of(self, earlier: Rates) -> bool:
        """Return whether the rates are equal."""
        return [each.parameters for each in self._in_force] == [each.parameters for each in earlier._in_force]

    def go_on_from(self, earlier: Rates) -> None:
        """Take over missing tokens: the tables may have lost jobs since."""
        # Unfilled buckets know less than those before.
        self._earlier = [*(earlier._in_force if earlier.is_filled else ()), *earlier._earlier]
        self._unclaimed, self._unclaimed_since = earlier._unclaimed, earlier._unclaimed_since
        self._looked_at = earlier._looked_at

    def let_go(self, connection: Connection) -> None:
        """Charge the latest claims and hold nothing back."""
        self.settle(connection)
        self._unclaimed = {}
        for buckets in self._in_force:
            buckets.hold_only({})

    @property
    def are_full(self) -> bool:
        """True if all buckets are full."""
        now = self._clock.now()
        return all(each.is_full(now) for each in self._all)

    def forgive_after_look(self) -> None:
        """Expect a last look at jobs delivered under other rules and called back now.

        Those already claimed have begun: stopping the queue would not help.
        """
        self._forgives = True

    def of_queue(self) -> int:
        """Count jobs that may begin."""
        return self.bucket.tokens("", self._clock.now()) if self.bucket else NO_LIMIT

    def of_key(self, key: str) -> int:
        """Count the key's jobs that may begin."""
        return self.key_buckets.tokens(key, self._clock.now()) if self.key_buckets else NO_LIMIT

    def next_of_queue_at(self) -> float | None:
        """Time by `monotonic()` when the queue gets a token; None if it has one."""
        return self._next_at(self.bucket, "")

    def next_of_key_at(self, key: str) -> float | None:
        """Return the same for a key; None also if `is_held`."""
        return None if self.is_held(key) else self._next_at(self.key_buckets, key)

    def is_held(self, key: str) -> bool:
        """Return whether the key gets no token before a claim; `settle` returns it then."""
        return self.key_buckets is not None and self.key_buckets.is_held(key)

    @property
    def waits_for_claims(self) -> bool:
        """True if the queue gets no token before a claim."""
        return self.bucket is not None and self.bucket.is_held("")

    @property
    def holds_keys(self) -> bool:
        """True if keys hold tokens back."""
        return self.key_buckets is not None and bool(self._unclaimed)

    def empty_keys(self) -> list[str]:
        """List keys without tokens."""
        return self.key_buckets.empty(self._clock.now()) if self.key_buckets else []

    def take(self, job_id: int, key: str, claims: int = 0) -> None:
        """Hold tokens back for a delivered job with this number of claims."""
        if not self:
            return
        if job_id in self._unclaimed:
            # Claimed, ended and back since the last look.
            self._charge({job_id: self._unclaimed[job_id]}, {})
        self._unclaimed[job_id] = Unclaimed(key, claims)
        for buckets in self._in_force:
            buckets.hold(key)

    def settle(self, connection: Connection) -> Collection[str]:
        """Charge claimed jobs; return their keys, or ''. Unclaimed ones may all begin at once, however late."""
        claimed = self._look_at_unclaimed(connection) if self and self._unclaimed else ()
        if self._forgives:
            for buckets in self._all:
                buckets.forgive(self._clock.now())
        self._forgives = False
        return claimed

    def refill(self, connection: Connection) -> None:
        """Fill the buckets, once, from recent starts in the tables."""
        if self.is_filled:
            return
        self.is_filled = True
        if self._all:
            # First: a job claimed in between counts twice, not never.
            self._look_at_unclaimed(connection)
        now = self._clock.now()
        for buckets in self._in_force:
            counts, covered = running.begun(connection, self._queue, buckets.memory_seconds, _MOST_BEGUN)
            taken = buckets.by_bucket((key, count) for key, count in counts.items())
            buckets.refill({name: sum(each) for name, each in taken.items()}, now - covered, now)
            for earlier in self._earlier:
                buckets.owe(earlier, now)
        self._keep_earlier(now)

    @property
    def _all(self) -> list[Buckets]:
        return [*self._in_force, *self._earlier]

    def _keep_earlier(self, now: float) -> None:
        current = {each.parameters for each in self._in_force}
        for buckets in self._earlier:
            # Unclaimed jobs are called back, or begin under the current rules.
            buckets.hold_only({})
        # The latest of equal parameters lack all that earlier ones do.
        latest = {each.parameters: each for each in reversed(self._earlier) if not each.is_full(now)}
        kept = [each for parameters, each in latest.items() if parameters not in current]
        self._earlier = nlargest(_MOST_EARLIER, kept, key=attrgetter("full_at"))

    def _look_at_unclaimed(self, connection: Connection) -> Collection[str]:
        earlier, looked_at = self._unclaimed, self._looked_at
        self._looked_at = monotonic()
        self._unclaimed, self._unclaimed_since = running.unclaimed(
            connection, self._queue, self._unclaimed_since
        )
        for buckets in self._in_force:
            held = buckets.by_bucket((job.key, job_id) for job_id, job in self._unclaimed.items())
            buckets.hold_only({name: len(each) for name, each in held.items()})
        gone = {job_id: job for job_id, job in earlier.items() if job_id not in self._unclaimed}
        if gone:
            # The job may have been called back unclaimed, and our clock may lag.
            seconds = self._looked_at - looked_at + _CLOCK_JUMP_SECONDS
            self._charge(gone, running.last_claims(connection, gone, seconds))
        return {job.key for job in gone.values()}

    def _charge(self, jobs: Mapping[int, Unclaimed], claims: Mapping[int, LastClaim]) -> None:
        now = self._clock.now()
        begun: list[tuple[str, float]] = []
        for job_id, job in jobs.items():
            last = claims.get(job_id, LastClaim(job.claims + 1, now))
            if last.number > job.claims:
                begun.append((job.key, last.at))
        for buckets in self._all:
            for name, each in buckets.by_bucket(begun).items():
                buckets.begin(name, sorted(each), now)

    def _next_at(self, buckets: Buckets | None, name: str) -> float | None:
        now = self._clock.now()
        if buckets is None or buckets.tokens(name, now):
            return None
        return self._clock.monotonic(buckets.next_token_at(name, now))
