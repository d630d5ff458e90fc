"""The plan at work: begins each fault in its time, and ends it in its time."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

from tests.soak.faults import End, Faults
from tests.soak.plan import POSTGRES, REDIS, Fault, Kind, names

_FOREVER = datetime.max.replace(tzinfo=UTC)
# What happens this soon after a fault, such as a takeover, still belongs to it.
_AFTERMATH = timedelta(seconds=0.5)


@dataclass
class Span:
    """Time of one fault and of its aftermath."""

    name: str
    began: datetime
    ended: datetime | None = None

    def end(self, now: datetime) -> None:
        """Note that the fault is over."""
        self.ended = now + _AFTERMATH


def coverage(spans: Sequence[Span], letters: Sequence[tuple[str, datetime]]) -> dict[str, Counter[str]]:
    """Count by fault the transitions of jobs that were committed during it, also if there were none."""
    at = sorted((time, letter) for letter, time in letters)
    found: dict[str, Counter[str]] = {name: Counter() for name in names()}
    for span in spans:
        first, last = (bisect_left(at, (time, "")) for time in (span.began, span.ended or _FOREVER))
        found[span.name].update(letter for _, letter in at[first:last])
    return found


class Chaos:
    """Goes through a plan; what is away already is passed over.

    Args:
        plan: The faults in their order, without end.
        faults: What does them.

    Attributes:
        done: How many of each have been done, by whom and what.
        spans: When each began and ended.
    """

    def __init__(self, plan: Iterable[Fault], faults: Faults) -> None:
        self.done: Counter[tuple[str, Kind]] = Counter()
        self.spans: list[Span] = []
        self._faults = faults
        self._plan = iter(plan)
        self._coming = next(self._plan)
        self._numbers = count()
        self._under_way: list[tuple[float, int, str, End, Span]] = []
        self._away: set[str] = set()

    def act(self, seconds: float) -> None:
        """Do what is due, so many seconds after the beginning."""
        while self._under_way and self._under_way[0][0] <= seconds:
            self._end_one()
        while self._coming.at <= seconds:
            fault, self._coming = self._coming, next(self._plan)
            self._begin(fault)

    def end(self) -> None:
        """End all that is under way."""
        while self._under_way:
            self._end_one()

    def is_there(self, target: str) -> bool:
        """Whether it is neither stopped nor killed at the moment."""
        return target not in self._away

    def _begin(self, fault: Fault) -> None:
        if not self.is_there(fault.target) or not self._can_be_reached(fault):
            return
        began = self._faults.now()
        end = self._faults.begin(fault)
        if end is None:
            return
        self.done[fault.whom, fault.kind] += 1
        span = Span(fault.name, began)
        self.spans.append(span)
        if fault.seconds:
            self._away.add(fault.target)
            heapq.heappush(
                self._under_way, (fault.at + fault.seconds, next(self._numbers), fault.target, end, span)
            )
        else:
            end()
            span.end(self._faults.now())

    def _end_one(self) -> None:
        _, _, target, end, span = heapq.heappop(self._under_way)
        end()
        span.end(self._faults.now())
        self._away.discard(target)

    def _can_be_reached(self, fault: Fault) -> bool:
        """These are commands to a server, which has to be there to take them."""
        match fault.kind:
            case Kind.DISCONNECT:
                return self.is_there(POSTGRES)
            case Kind.FLUSH:
                return self.is_there(REDIS)
            case _:
                return True
