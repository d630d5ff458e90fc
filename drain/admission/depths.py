"""Depths of the Redis lists: each holds a moment's work; other jobs stay staged.

A list's length after the last push, plus later moves, bounds its contents: Redis is asked only about lists that seem
full.

Unless fixed, the bound is a tenth of the workers' recent rate per second, and at least two jobs per worker. It
doubles when a list ran empty while rows waited.

Redis shows other processes the bounds of lists with waiting rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import exp
from time import monotonic

from drain.wire import QueueReader

_AHEAD_SECONDS = 0.1
# Window of a queue's rate.
_AVERAGE_SECONDS = 0.2
# Life of a doubled bound: longer than a round on a busy machine.
_FORGET_SECONDS = 2.0
# Smallest bounds, without workers and per worker; and the largest.
SHORTEST = 16
_FOR_EACH_WORKER = 2
_LONGEST_DOUBLED = 20_000
# Between looks at a full list.
_SOONEST_LOOK_SECONDS = 0.001
_LATEST_LOOK_SECONDS = 0.05
# Pause per duration of a look at lists without workers, maybe thousands; bounded, since a look may be slow for
# other reasons.
_PAUSE_WITHOUT_WORKERS = 9
_LONGEST_PAUSE_SECONDS = 1.0
# Between writes of bounds to Redis.
_SHOW_SECONDS = 0.5
# Then an unused list without waiting rows is forgotten.
_KEPT_SECONDS = 600.0
UNBOUNDED = 2**31 - 1


def room_of(bound: int, length: int) -> int:
    """Room in a list: none until half of its bound is free."""
    room = bound - length
    return room if room >= max(1, bound // 2) else 0


@dataclass(slots=True)
class Depth:
    """Depth of one list.

    Attributes:
        length: At `known_at`, by `monotonic()`.
        on_the_way: Jobs moved since.
        rate: Jobs taken per second recently.
        doubled: Bound doubled because the list ran empty; else 0.
        withheld: Rows have waited for room since.
        nap: Seconds from `known_at` to the next look.
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
        """Current bound."""
        least = max(SHORTEST, _FOR_EACH_WORKER * self.workers)
        return int(max(least, _AHEAD_SECONDS * self.rate, self.doubled))

    @property
    def at_most(self) -> int:
        """Greatest possible length now."""
        return self.length + self.on_the_way

    @property
    def room_expected_at(self) -> float:
        """Time of the next look; infinite if no rows wait."""
        return self.known_at + self.nap if self.withheld else float("inf")

    def observe(self, length: int, pushed: int, now: float) -> None:
        """Note the length, including `pushed` jobs that were on the way."""
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
        # While the bound is too low, so is the rate, which then cannot predict room.
        self.nap = min(_LATEST_LOOK_SECONDS, _SOONEST_LOOK_SECONDS if pushed or ran_empty else 2 * self.nap)
        if not self.doubled > self.bound / 2 and self.rate > 0:
            seconds = (self.at_most - self.bound / 2) / self.rate
            self.nap = min(_LATEST_LOOK_SECONDS, max(self.nap, seconds))


class Depths:
    """Keeps lists short.

    Args:
        fixed: Bound of each list; 0 for none, None to follow the workers.
    """

    def __init__(
        self, redis: QueueReader, *, fixed: int | None = None, unbounded: Collection[str] = ()
    ) -> None:
        self._redis = redis
        self._fixed = fixed
        self._unbounded = unbounded
        self._depths: dict[str, Depth] = {}
        # Queues with withheld rows.
        self._waited_for: set[str] = set()
        # Lower bound of when they may have room.
        self._look_at = float("inf")
        self._show_at = 0.0
        self._forget_at = monotonic() + _KEPT_SECONDS

    def room(self, queue: str) -> int:
        """Jobs that the list may take."""
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
        """Count moved jobs."""
        if self._fixed != 0:
            for queue, count in jobs.items():
                self._of(queue).on_the_way += count

    def pushed(self, jobs: Mapping[str, int], lengths: Mapping[str, int]) -> None:
        """Note pushed or refused jobs, and list lengths afterwards."""
        if self._fixed == 0:
            return
        now = monotonic()
        for queue, count in jobs.items():
            depth = self._of(queue)
            depth.observe(lengths.get(queue, depth.length), count, now)
            self._waited_for.discard(queue)

    def look_when_due(self) -> bool:
        """Query full lists, if due; return True if one has room."""
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
        if now >= self._show_at:
            waited_for = {queue: self._depths[queue] for queue in self._waited_for}
            self._redis.show_bounds({queue: self._fixed or each.bound for queue, each in waited_for.items()})
            self._show_at = now + _SHOW_SECONDS

    @property
    def next_look_at(self) -> float:
        """Time by `monotonic()` when a full list may have room."""
        return self._look_at

    def _of(self, queue: str) -> Depth:
        return self._depths.setdefault(queue, Depth())
