"""Depths of the lists in Redis: each holds what its workers take within a moment, and the rest stays staged.

What a list holds need not be asked while it cannot be full: its length after the latest push, and what was moved
since, is an upper bound. The length comes with the answer to each push; Redis is asked only when a list seems to be
full.

The bound follows the workers. Without a bound that is fixed it is what they have taken in a tenth of a second lately,
at least two jobs for each worker. A list that has run empty although rows waited for it was too short, and its bound is
doubled.

The bounds of the lists for which rows wait are shown in Redis, so that others can tell which lists are full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import exp
from time import monotonic

from drain.wire import QueueReader

# Time within which workers take what a list holds.
_AHEAD_SECONDS = 0.1
# Time over which the rate of a queue is averaged.
_AVERAGE_SECONDS = 0.2
# Time in which a bound that was doubled is forgotten: longer than a round of a leader on a busy machine.
_FORGET_SECONDS = 2.0
# Bounds of a bound: for a queue without workers, for each worker, and for a list that is found empty again and again.
SHORTEST = 16
_FOR_EACH_WORKER = 2
_LONGEST_DOUBLED = 20_000
# Bounds of the time until a full list is looked at again.
_SOONEST_LOOK_SECONDS = 0.001
_LATEST_LOOK_SECONDS = 0.05
# Pause after a look at lists without workers, as a multiple of its duration, since there may be thousands; and its
# upper bound, since a look may take long for other reasons.
_PAUSE_WITHOUT_WORKERS = 9
_LONGEST_PAUSE_SECONDS = 1.0
# Time between two writes of the bounds of full lists to Redis.
_SHOW_SECONDS = 0.5
# Time after the last push after which the depth of a list that nothing waits for is forgotten, as of one never used.
_KEPT_SECONDS = 600.0
# Room of a list without a bound.
UNBOUNDED = 2**31 - 1


def room_of(bound: int, length: int) -> int:
    """Return how many ids a list of this length may take: none until half of its bound is free."""
    room = bound - length
    return room if room >= max(1, bound // 2) else 0


@dataclass(slots=True)
class Depth:
    """Depth of one list.

    Attributes:
        length: Length when it was last known.
        on_the_way: Number of jobs that were moved since, and are not in that length.
        known_at: Time by `monotonic()` at which the length was known.
        rate: Jobs that workers have taken per second lately.
        workers: Number of workers that have registered for the queue.
        doubled: Bound that was doubled because the list ran empty; 0 if it did not.
        withheld: Rows waited for room since the length was last known.
        nap: Time from then until the next look, in seconds.
    """

    length: int = 0
    on_the_way: int = 0
    known_at: float = 0.0
    rate: float = 0.0
    workers: int = 0
    doubled: float = 0.0
    withheld: bool = False
    nap: float = _SOONEST_LOOK_SECONDS

    @property
    def bound(self) -> int:
        """Upper bound of the list's length."""
        least = max(SHORTEST, _FOR_EACH_WORKER * self.workers)
        return int(max(least, _AHEAD_SECONDS * self.rate, self.doubled))

    @property
    def at_most(self) -> int:
        """Upper bound of what the list holds now."""
        return self.length + self.on_the_way

    @property
    def room_expected_at(self) -> float:
        """Time at which to look at the list again; infinite if no rows wait for room."""
        return self.known_at + self.nap if self.withheld else float("inf")

    def observe(self, length: int, pushed: int, now: float) -> None:
        """Note the length of the list, in which `pushed` of the jobs are that were on the way."""
        seconds = max(1e-6, now - self.known_at)
        weight = 1 - exp(-seconds / _AVERAGE_SECONDS)
        if self.known_at:
            taken = max(0, self.length + pushed - length)
            self.rate += weight * (taken / seconds - self.rate)
        self.doubled *= exp(-seconds / _FORGET_SECONDS)
        ran_empty = self.withheld and bool(self.length or self.rate) and length <= pushed
        if ran_empty:
            self.doubled = min(_LONGEST_DOUBLED, 2 * self.bound)
        self.length, self.known_at, self.withheld = length, now, False
        self.on_the_way = max(0, self.on_the_way - pushed)
        # While the bound is too low, the rate is too: it says nothing about when there will be room.
        self.nap = min(_LATEST_LOOK_SECONDS, _SOONEST_LOOK_SECONDS if pushed or ran_empty else 2 * self.nap)
        if not self.doubled > self.bound / 2 and self.rate > 0:
            seconds = (self.at_most - self.bound / 2) / self.rate
            self.nap = min(_LATEST_LOOK_SECONDS, max(self.nap, seconds))


class Depths:
    """Keeps the lists of all queues short, for one leader.

    Args:
        redis: Reader of the lists.
        fixed: Bound of each list; 0 for none, None to let it follow the workers.
        unbounded: Names of queues whose lists have no bound.
    """

    def __init__(
        self, redis: QueueReader, *, fixed: int | None = None, unbounded: Collection[str] = ()
    ) -> None:
        self._redis = redis
        self._fixed = fixed
        self._unbounded = unbounded
        self._depths: dict[str, Depth] = {}
        # Queues whose depth is withheld: very many others may be known.
        self._waited_for: set[str] = set()
        # Not above the time at which one of them may have room.
        self._look_at = float("inf")
        self._show_at = 0.0
        self._forget_at = monotonic() + _KEPT_SECONDS

    def room(self, queue: str) -> int:
        """Return how many jobs the list may take now."""
        if self._fixed == 0 or queue in self._unbounded:
            return UNBOUNDED
        depth = self._of(queue)
        room = room_of(self._fixed or depth.bound, depth.at_most)
        if not room:
            depth.withheld = True
            self._waited_for.add(queue)
            self._look_at = min(self._look_at, depth.room_expected_at)
        return room

    def moved(self, jobs: Mapping[str, int]) -> None:
        """Count jobs, by queue, that were moved and will be pushed."""
        if self._fixed != 0:
            for queue, count in jobs.items():
                self._of(queue).on_the_way += count

    def pushed(self, jobs: Mapping[str, int], lengths: Mapping[str, int]) -> None:
        """Note that jobs were pushed, or refused, by queue, and how long each list was afterwards."""
        if self._fixed == 0:
            return
        now = monotonic()
        for queue, count in jobs.items():
            depth = self._of(queue)
            depth.observe(lengths.get(queue, depth.length), count, now)
            self._waited_for.discard(queue)

    def look_when_due(self) -> bool:
        """Ask Redis for the lengths of the full lists that may have room again, and for their workers.

        Returns:
            True if one of them has room.

        Raises:
            UnavailableError: Redis.
        """
        now = monotonic()
        if now >= self._forget_at:
            self._forget_at = now + _KEPT_SECONDS / 10
            self._forget_idle(now - _KEPT_SECONDS)
        if now < self._look_at:
            return False
        due = [queue for queue in self._waited_for if self._depths[queue].room_expected_at <= now]
        if due:
            self._show(now)
            self._ask(due, now)
        self._waited_for.difference_update(due)
        expected = (self._depths[queue].room_expected_at for queue in self._waited_for)
        self._look_at = min(expected, default=float("inf"))
        return max(map(self.room, due), default=0) > 0

    def _ask(self, queues: Collection[str], now: float) -> None:
        found = self._redis.lengths(queues)
        pause = min(_LONGEST_PAUSE_SECONDS, _PAUSE_WITHOUT_WORKERS * (monotonic() - now))
        for queue, (length, workers) in found.items():
            depth = self._depths[queue]
            depth.workers = workers
            depth.observe(length, 0, now)
            if not workers:
                depth.nap = max(depth.nap, pause)

    def _forget_idle(self, since: float) -> None:
        self._depths = {
            queue: depth
            for queue, depth in self._depths.items()
            if depth.withheld or depth.on_the_way or depth.known_at > since
        }

    def _show(self, now: float) -> None:
        """Show the bounds of the lists for which rows wait, unless that was done lately."""
        if now >= self._show_at:
            waited_for = {queue: self._depths[queue] for queue in self._waited_for}
            self._redis.show_bounds({queue: self._fixed or each.bound for queue, each in waited_for.items()})
            self._show_at = now + _SHOW_SECONDS

    @property
    def next_look_at(self) -> float:
        """Time, by `monotonic()`, at which a full list for which rows wait may have room again."""
        return self._look_at

    def _of(self, queue: str) -> Depth:
        return self._depths.setdefault(queue, Depth())
