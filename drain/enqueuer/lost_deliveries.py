"""Lost deliveries: numbers in no Redis list that stay unclaimed for some seconds.

A worker claims a moment after popping, so a missing number is first only suspected. It never reappears in its list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from drain.enqueuer.deliveries import Deliveries
from drain.enqueuer.oldest_deliveries import OldestDeliveries
from drain.enqueuer.pacer import Pacer
from drain.wire import Producer

# Whole lists are read only if foreign ids fill their heads: milliseconds per 5,000 ids.
_WHOLE_LISTS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Highest unclaimed number in no list, first found `since`, by `monotonic()`."""

    up_to: int
    since: float


class Overdue(NamedTuple):
    """Inclusive range of numbers, lost if unclaimed."""

    queue: str
    first: int
    last: int


class LostDeliveries:
    """Finds lost deliveries by Redis's contents.

    Args:
        lost_after_seconds: Grace for a delivery in no list.
    """

    def __init__(
        self,
        redis: Producer,
        deliveries: Deliveries,
        oldest: OldestDeliveries,
        *,
        lost_after_seconds: float,
        alive: Callable[[], None],
    ) -> None:
        self._redis = redis
        self._deliveries = deliveries
        self._oldest = oldest
        self._lost_after_seconds = lost_after_seconds
        self._alive = alive
        self._suspicions: dict[str, Suspicion] = {}
        # Fed by another database.
        self._foreign: set[str] = set()
        self._whole_lists = Pacer(_WHOLE_LISTS_SECONDS)

    def find(self) -> list[Overdue]:
        """Find lost deliveries of queues in turn."""
        now = monotonic()
        oldest, looked_at = self._oldest.find(), self._oldest.looked_at
        foreign = set(self._redis.fed_by_others(oldest.keys()))
        freed = (self._foreign & looked_at) - foreign
        self._foreign = (self._foreign - looked_at) | foreign
        ours = {queue: delivery for queue, delivery in oldest.items() if queue not in foreign}
        lowest = self._lowest_listed(list(ours))
        suspicions, overdue = self._suspicions, list[Overdue]()
        self._suspicions = {queue: each for queue, each in suspicions.items() if queue not in looked_at}
        for queue, delivery in ours.items():
            if queue in freed:
                # Refused deliveries are never in a list.
                overdue.append(Overdue(queue, delivery, self._deliveries.last_delivery))
                continue
            suspicion = suspicions.get(queue)
            if suspicion is None or delivery > suspicion.up_to:
                suspicion = self._suspicion(delivery, lowest[queue], now)
                if suspicion is not None:
                    self._suspicions[queue] = suspicion
            elif now - suspicion.since < self._lost_after_seconds:
                self._suspicions[queue] = suspicion
            else:
                overdue.append(Overdue(queue, delivery, suspicion.up_to))
        return overdue

    def _suspicion(self, delivery: int, lowest_listed: int | None, now: float) -> Suspicion | None:
        gone_up_to = self._deliveries.pushed_up_to if lowest_listed is None else lowest_listed - 1
        return Suspicion(gone_up_to, now) if delivery <= gone_up_to else None

    def _lowest_listed(self, queues: Sequence[str]) -> dict[str, int | None]:
        """Return lowest listed numbers; None without our numbers, 0 if unknown."""
        redis, up_to = self._redis, self._deliveries.last_delivery
        lowest = redis.lowest_deliveries(queues, up_to=up_to)
        # A key that is not a list has no depth.
        unknown = [queue for queue in queues if lowest[queue] == 0 and redis.depth(queue)]
        if unknown and self._whole_lists.is_due():
            began = monotonic()
            lowest |= {queue: self._lowest_of_whole_list(queue, up_to) for queue in unknown}
            self._whole_lists.ran_for(monotonic() - began)
        return lowest

    def _lowest_of_whole_list(self, queue: str, up_to: int) -> int | None:
        lowest: int | None = None
        for page in self._redis.listed(queue):
            numbers = [delivery for _, delivery in page if delivery <= up_to]
            lowest = min([*numbers, *([] if lowest is None else [lowest])], default=None)
            self._alive()
        return lowest
