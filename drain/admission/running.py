"""Running jobs of a queue: ids in memory, checked against `inflight_jobs`.

The count is never too low: the leader notes each job it lets run, and removes one only once the table shows its end. A
job cancelled while claimed counts until its worker confirms the end or its lease expires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from drain.database.postgres import Connection
from drain.tables import running

_LOOK_LIMIT = 8000


class CountedJobs:
    """Jobs with their keys, and counts by key."""

    def __init__(self, jobs: Iterable[tuple[int, str]] = ()) -> None:
        self.key_of: dict[int, str] = {}
        self.of_key: dict[str, int] = {}
        for job_id, key in jobs:
            self.add(job_id, key)

    def add(self, job_id: int, key: str) -> bool:
        """Add a job; False if present."""
        if job_id in self.key_of:
            return False
        self.key_of[job_id] = key
        self.of_key[key] = self.of_key.get(key, 0) + 1
        return True

    def remove(self, job_id: int) -> str | None:
        """Remove a job; return its key, if present."""
        key = self.key_of.pop(job_id, None)
        if key is not None:
            if self.of_key[key] > 1:
                self.of_key[key] -= 1
            else:
                del self.of_key[key]
        return key


class RunningJobs:
    """Jobs of one queue."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self._connection = connection
        self._queue = queue
        self._running = CountedJobs()
        # Cancelled jobs still at their workers at the last look, by key.
        self._cancelled: Counter[str] = Counter()
        # Cancelled, revived and admitted again since the last look: they may run twice.
        self._again: Counter[str] = Counter()
        # Ids left.
        self._round: Iterator[int] = iter(())

    @property
    def total(self) -> int:
        """Number of running jobs."""
        return len(self._running.key_of) + self._cancelled.total() + self._again.total()

    def of_key(self, key: str) -> int:
        """Count a key's jobs."""
        return self._running.of_key.get(key, 0) + self._cancelled[key] + self._again[key]

    def keys_with(self, number: int) -> list[str]:
        """List keys with at least this many jobs."""
        keys = {*self._running.of_key, *self._cancelled, *self._again}
        return [key for key in keys if key and self.of_key(key) >= number]

    def rebuild(self) -> None:
        """Read from the table."""
        jobs = running.in_flight(self._connection, self._queue)
        self._running = CountedJobs((job_id, key) for job_id, key in jobs if job_id is not None)
        self._cancelled = Counter(key for job_id, key in jobs if job_id is None)
        self._again.clear()

    def add(self, job_id: int, key: str) -> None:
        """Add a job that runs now."""
        if not self._running.add(job_id, key):
            self._again[key] += 1

    def look(self) -> set[str]:
        """Check thousands of jobs; return the keys, or '', of ended ones.

        In autocommit mode: the answer must not be older than the last look.
        """
        ids = self._next_ids()
        if not ids and not self._cancelled and not self._again:
            return set()
        still, cancelled = running.still_running(self._connection, self._queue, ids)
        before, self._cancelled = self._cancelled + self._again, Counter(cancelled)
        self._again.clear()
        ended = set(before - self._cancelled)
        for job_id in set(ids).difference(still):
            key = self._running.remove(job_id)
            # It may have ended earlier.
            if key is not None:
                ended.add(key)
        return ended

    def _next_ids(self) -> list[int]:
        ids = list(islice(self._round, _LOOK_LIMIT))
        if len(ids) < _LOOK_LIMIT:
            # Asking twice is harmless.
            self._round = iter(list(self._running.key_of))
            ids += islice(self._round, _LOOK_LIMIT - len(ids))
        return ids
