"""Awake queues with rules may have due rows; the others cost only the memory of their rules.

A found lane, staged job or due retry wakes a queue; some seconds without due rows put it to sleep.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import nsmallest
from itertools import chain, islice
from time import monotonic

from drain.admission.keyed_queue import RuledQueue
from drain.admission.rates import Rates

# Awake queues; and sleeping ones with counts.
MOST_AWAKE = 1000
# Queues woken, looked at or read together, in turn.
MOST_AT_ONCE = 50
# Between turns, if more queues have rows than may be awake.
_TURN_SECONDS = 0.25


class AwakeQueues:
    """Queues with rules, some of them awake.

    Args:
        make: Creates a queue; None without usable rules.
        prepare: Called with each waking queue.

    Attributes:
        awake: By name, the one read longest ago first.
        fallen_asleep: Names, until taken.
    """

    def __init__(
        self, make: Callable[[str], RuledQueue | None], prepare: Callable[[str, RuledQueue], None]
    ) -> None:
        self.awake: dict[str, RuledQueue] = {}
        self.fallen_asleep: set[str] = set()
        self._make = make
        self._prepare = prepare
        # Most recent last.
        self._asleep: dict[str, RuledQueue] = {}
        # Rates of forgotten queues with buckets not full.
        self._spent: dict[str, Rates] = {}
        self._look_for_full_above = MOST_AWAKE
        self._called: dict[str, None] = {}
        self._next_turn_at = 0.0

    def __iter__(self) -> Iterator[str]:
        return iter([*self.awake, *self._asleep])

    def call(self, queue: str) -> None:
        """Let a queue wake soon."""
        if queue not in self.awake:
            self._called[queue] = None

    @property
    def next_turn_at(self) -> float:
        """Time by `monotonic()` of the next turn; infinite for none."""
        if not self._called:
            return float("inf")
        return 0.0 if len(self.awake) < MOST_AWAKE else self._next_turn_at

    def wake(self, queue: str) -> RuledQueue | None:
        """Wake a queue now; None without usable rules."""
        self._called.pop(queue, None)
        ruled = self.awake.get(queue) or self._asleep.pop(queue, None) or self._made(queue)
        if ruled is not None and queue not in self.awake:
            self._prepare(queue, ruled)
            ruled.wake()
            self.awake[queue] = ruled
        return ruled

    def take_turns(self) -> None:
        """Put idle queues to sleep; wake called ones."""
        self._put_to_sleep([queue for queue, ruled in self.awake.items() if ruled.may_sleep])
        number = min(len(self._called), MOST_AT_ONCE) if monotonic() >= self.next_turn_at else 0
        # Redelivery wakes queues beyond the bound.
        self._make_room(len(self.awake) + number - MOST_AWAKE)
        for queue in list(islice(self._called, number)):
            self.wake(queue)

    def due(self, paused: Callable[[str], bool]) -> Collection[str]:
        """Return unpaused queues due for a look."""
        now = monotonic()
        due = {
            queue: at
            for queue, ruled in self.awake.items()
            if (at := ruled.next_look_at) <= now and not paused(queue)
        }
        return due if len(due) <= MOST_AT_ONCE else nsmallest(MOST_AT_ONCE, due, key=due.__getitem__)

    def get(self, queue: str) -> RuledQueue | None:
        """Return a known queue, awake or not."""
        return self.awake.get(queue) or self._asleep.get(queue)

    def forget(self, queue: str) -> None:
        """Forget a queue, except the missing tokens of its buckets."""
        ruled = self.awake.pop(queue, None) or self._asleep.pop(queue, None)
        self._called.pop(queue, None)
        if ruled is not None:
            self._keep(queue, ruled)

    def _made(self, queue: str) -> RuledQueue | None:
        ruled = self._make(queue)
        if ruled is not None and queue in self._spent:
            ruled.allowances.rates.go_on_from(self._spent.pop(queue))
        return ruled

    def _keep(self, queue: str, ruled: RuledQueue) -> None:
        if not ruled.allowances.rates.are_full:
            self._spent[queue] = ruled.allowances.rates
        if len(self._spent) > self._look_for_full_above:
            self._spent = {name: each for name, each in self._spent.items() if not each.are_full}
            self._look_for_full_above = max(MOST_AWAKE, 2 * len(self._spent))

    def _make_room(self, number: int) -> None:
        if number <= 0:
            return
        idle = [queue for queue, ruled in self.awake.items() if ruled.is_idle]
        if len(idle) < number:
            self._next_turn_at = monotonic() + _TURN_SECONDS
        busy = (queue for queue, ruled in self.awake.items() if not ruled.is_idle)
        self._put_to_sleep(list(islice(chain(idle, busy), number)))

    def _put_to_sleep(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self._asleep[queue] = self.awake.pop(queue)
            self.fallen_asleep.add(queue)
        while len(self._asleep) > MOST_AWAKE:
            self.forget(next(iter(self._asleep)))
