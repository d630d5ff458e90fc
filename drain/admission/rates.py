"""Rates of a queue: how many more of its jobs, and of those of each key, may begin by them now."""

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
# Upper bound of the finished jobs that are read to fill the buckets.
_MOST_BEGUN = 300_000
# Time that a look at delivered jobs reaches back beyond the one before: the database's clock may have been set.
_CLOCK_JUMP_SECONDS = 3600.0
# Upper bound of the earlier rates that are remembered, of each kind.
_MOST_EARLIER = 8


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


class Rates:
    """Buckets of one queue. Each job takes a token when a worker claims it, and holds one back from its delivery on.

    Buckets of earlier rules are charged too until they are full: a rate that is changed, and changed back, is not
    exceeded in between.

    Args:
        rules: Rules of the queue.
        clock: Time by the database's clock.

    Attributes:
        bucket: The queue's bucket, if it has a rate.
        key_buckets: Those of its keys.
        is_filled: The buckets have been filled; see `refill`.
    """

    # One thing: the buckets and the jobs that hold their tokens back, which change together.
    def __init__(self, rules: Rules, clock: DatabaseClock) -> None:
        self.bucket = Buckets(rules.rate, rules.burst) if rules.rate else None
        self.key_buckets = (
            Buckets(rules.rate_per_key, rules.burst, per_key=True) if rules.rate_per_key else None
        )
        self.is_filled = False
        self._queue = rules.queue
        self._clock = clock
        self._in_force = [each for each in (self.bucket, self.key_buckets) if each]
        # Those of the latest rules come first.
        self._earlier: list[Buckets] = []
        self._forgives = False
        # Jobs that were delivered and not claimed at the last look, or have been delivered since.
        self._unclaimed: dict[int, Unclaimed] = {}
        self._unclaimed_since = 0
        self._looked_at = monotonic()

    def __bool__(self) -> bool:
        """Return True if there are rates."""
        return bool(self._in_force)

    def are_those_of(self, earlier: Rates) -> bool:
        """Return True if these are the rates of earlier rules."""
        return [each.parameters for each in self._in_force] == [each.parameters for each in earlier._in_force]

    def go_on_from(self, earlier: Rates) -> None:
        """Be filled above nothing that the buckets of earlier rules lack: the tables may have lost jobs since."""
        # Buckets that were never filled know less than those before them.
        self._earlier = [*(earlier._in_force if earlier.is_filled else ()), *earlier._earlier]
        self._unclaimed, self._unclaimed_since = earlier._unclaimed, earlier._unclaimed_since
        self._looked_at = earlier._looked_at

    def let_go(self, connection: Connection) -> None:
        """Charge a last time what a worker has claimed, and hold nothing back: no rate is in force from now on."""
        self.settle(connection)
        self._unclaimed = {}
        for buckets in self._in_force:
            buckets.hold_only({})

    @property
    def are_full(self) -> bool:
        """True if no bucket lacks a token or holds one back."""
        now = self._clock.now()
        return all(each.is_full(now) for each in self._all)

    def forgive_after_look(self) -> None:
        """Expect a last look at jobs that were delivered under other rules and are called back now.

        Those that were claimed before have begun all the same; it would not help to stop the queue for them.
        """
        self._forgives = True

    def of_queue(self) -> int:
        """Count the jobs of the queue that may begin."""
        return self.bucket.tokens("", self._clock.now()) if self.bucket else NO_LIMIT

    def of_key(self, key: str) -> int:
        """Count the jobs of a key that may begin, if the queue lets them."""
        return self.key_buckets.tokens(key, self._clock.now()) if self.key_buckets else NO_LIMIT

    def next_of_queue_at(self) -> float | None:
        """Return when the queue's bucket has a token, by this process' clock; None if it has one."""
        return self._next_at(self.bucket, "")

    def next_of_key_at(self, key: str) -> float | None:
        """Return when the key's bucket has a token, by this process' clock; None if it has one, or `is_held`."""
        return None if self.is_held(key) else self._next_at(self.key_buckets, key)

    def is_held(self, key: str) -> bool:
        """Return True if the key gets no token before a worker claims a job of it: `settle` returns it then."""
        return self.key_buckets is not None and self.key_buckets.is_held(key)

    @property
    def waits_for_claims(self) -> bool:
        """True if the queue gets no token before a worker claims a job."""
        return self.bucket is not None and self.bucket.is_held("")

    @property
    def holds_keys(self) -> bool:
        """True if keys hold tokens back."""
        return self.key_buckets is not None and bool(self._unclaimed)

    def empty_keys(self) -> list[str]:
        """List the keys that have no token."""
        return self.key_buckets.empty(self._clock.now()) if self.key_buckets else []

    def take(self, job_id: int, key: str, claims: int = 0) -> None:
        """Hold tokens back for a job of a key that is being delivered, after so many claims."""
        if not self:
            return
        if job_id in self._unclaimed:
            # Claimed, ended and back again since the last look.
            self._charge({job_id: self._unclaimed[job_id]}, {})
        self._unclaimed[job_id] = Unclaimed(key, claims)
        for buckets in self._in_force:
            buckets.hold(key)

    def settle(self, connection: Connection) -> Collection[str]:
        """Charge jobs that a worker has claimed; those that still wait for one may all begin at once, however late.

        Returns:
            Keys, or '', of the jobs that no longer wait for a worker.
        """
        claimed = self._look_at_unclaimed(connection) if self and self._unclaimed else ()
        if self._forgives:
            for buckets in self._all:
                buckets.forgive(self._clock.now())
        self._forgives = False
        return claimed

    def refill(self, connection: Connection) -> None:
        """Fill the buckets from the attempts that the tables show as begun lately; once."""
        if self.is_filled:
            return
        self.is_filled = True
        if self._all:
            # First: a job that is claimed in between counts twice, and not never.
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
            # What waits for a worker is called back, or begins under the rules in force.
            buckets.hold_only({})
        # Of buckets with the same parameters the latest lack all that those before them lack.
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
            # Always asked: the job may have been called back without a claim, and our clock may be behind.
            seconds = self._looked_at - looked_at + _CLOCK_JUMP_SECONDS
            self._charge(gone, running.last_claims(connection, gone, seconds))
        return {job.key for job in gone.values()}

    def _charge(self, jobs: Mapping[int, Unclaimed], claims: Mapping[int, LastClaim]) -> None:
        """Charge those of these jobs that have been claimed since; at present those of which that is not known."""
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
