"""Finished jobs of the last hours in five-minute steps, each counted once it is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from threading import Lock
from time import monotonic

from drain.database.postgres import Connection
from drain.read.queue_overview import MOST_QUEUES, Number, Step, count_finished

STEP = timedelta(minutes=5)
STEPS = 36
# By then nearly every transaction that finished a job in the step has committed.
_LATE = timedelta(seconds=30)
# Steps per statement: initially and at most.
_FEW, _MANY = 1, 256
# Below this time the next statement may count more.
_QUICK_SECONDS = 0.005


class History:
    """Finished jobs by queue and step; thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counted: dict[Step, Number] = {}
        self._at_once = _FEW

    def fill(self, connection: Connection, queues: Collection[str], now: datetime, seconds: float) -> bool:
        """Count missing steps, latest first, for about `seconds`; True once none is missing."""
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
        """Return a queue's counts, earliest first; None where unknown."""
        with self._lock:
            return [self._counted.get(Step(queue, begun_at)) for begun_at in self.steps(now)]

    @staticmethod
    def steps(now: datetime) -> list[datetime]:
        """Return all steps' beginnings, earliest first."""
        return list(_steps(now))[::-1]

    def _missing(self, queues: Collection[str], now: datetime) -> Iterable[list[Step]]:
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
    latest = now - _LATE - STEP
    begun_at = latest.replace(minute=latest.minute // 5 * 5, second=0, microsecond=0)
    for number in range(STEPS):
        yield begun_at - number * STEP
