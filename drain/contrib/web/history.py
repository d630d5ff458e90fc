"""Jobs that finished in the last hours, in steps of five minutes: each step is counted once it is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from threading import Lock
from time import monotonic

from drain.database.postgres import Connection
from drain.read.queue_overview import MOST_QUEUES, Number, Step, count_finished

STEP = timedelta(minutes=5)
STEPS = 36
# Time after which no transaction commits a finish of a step any more, but for a few.
_LATE = timedelta(seconds=30)
# Number of steps that one statement counts at first, and at most.
_FEW, _MANY = 1, 256
# Time of a statement below which the next one may count more, in seconds.
_QUICK_SECONDS = 0.005


class History:
    """Numbers of finished jobs of each queue, by step. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counted: dict[Step, Number] = {}
        self._at_once = _FEW

    def fill(self, connection: Connection, queues: Collection[str], now: datetime, seconds: float) -> bool:
        """Count steps that are not known yet, the latest first, for about so long; returns True once all are known."""
        end = monotonic() + seconds
        wanted = self._missing(list(queues)[:MOST_QUEUES], now)
        for each in wanted:
            begin = monotonic()
            if begin > end:
                return False
            counted = count_finished(connection, each, STEP)
            with self._lock:
                self._counted.update(zip(each, counted, strict=True))
            quick = monotonic() - begin < _QUICK_SECONDS
            self._at_once = min(2 * self._at_once, _MANY) if quick else max(1, self._at_once // 2)
        return True

    def curve(self, queue: str, now: datetime) -> list[Number | None]:
        """Return the numbers of a queue, the earliest first; None where nothing is known yet."""
        with self._lock:
            return [self._counted.get(Step(queue, begun_at)) for begun_at in reversed(list(_steps(now)))]

    def _missing(self, queues: Collection[str], now: datetime) -> Iterable[list[Step]]:
        """Return the steps to count, in groups for a statement each, which are made as they are needed."""
        steps = list(_steps(now))
        with self._lock:
            for old in [step for step in self._counted if step.begun_at < steps[-1]]:
                del self._counted[old]
            missing = [
                Step(queue, begun_at)
                for begun_at in steps
                for queue in queues
                if Step(queue, begun_at) not in self._counted
            ]
        while missing:
            number = self._at_once
            yield missing[:number]
            del missing[:number]


def _steps(now: datetime) -> Iterable[datetime]:
    """Yield the begins of the steps that are over, the latest first."""
    latest = now - _LATE - STEP
    begun_at = latest.replace(minute=latest.minute // 5 * 5, second=0, microsecond=0)
    for number in range(STEPS):
        yield begun_at - number * STEP
