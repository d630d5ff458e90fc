"""Running jobs of a queue: ids in memory, by key, checked against `inflight_jobs`.

The count of the running jobs is never too low: the leader alone lets jobs run and notes each of them here, and a job is
taken out only after the table has shown that it no longer runs. One that was cancelled while a worker had it is counted
by the snapshot that takes it out: until the worker has confirmed its end, or its lease is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from drain.database.postgres import Connection
from drain.tables import running

# Upper bound of the jobs that one look asks for.
_LOOK_LIMIT = 8000


class CountedJobs:
    """Ids of jobs, each with its key, and their number by key."""

    def __init__(self, jobs: Iterable[tuple[int, str]] = ()) -> None:
        self.key_of: dict[int, str] = {}
        self.of_key: dict[str, int] = {}
        for job_id, key in jobs:
            self.add(job_id, key)

    def add(self, job_id: int, key: str) -> bool:
        """Add a job; returns False if it is there already."""
        if job_id in self.key_of:
            return False
        self.key_of[job_id] = key
        self.of_key[key] = self.of_key.get(key, 0) + 1
        return True

    def remove(self, job_id: int) -> str | None:
        """Take a job out; returns its key, None if it was not there."""
        key = self.key_of.pop(job_id, None)
        if key is not None:
            if self.of_key[key] > 1:
                self.of_key[key] -= 1
            else:
                del self.of_key[key]
        return key


class RunningJobs:
    """Jobs of one queue that run.

    Args:
        connection: The leader's.
        queue: Name of the queue.
    """

    def __init__(self, connection: Connection, queue: str) -> None:
        self._connection = connection
        self._queue = queue
        self._running = CountedJobs()
        # Cancelled jobs whose workers have not let go of them, by key: all that the last look has found.
        self._cancelled: Counter[str] = Counter()
        # Jobs that were cancelled, revived and admitted again since the last look, by key: they may run twice.
        self._again: Counter[str] = Counter()
        # Ids that are still to be asked for in this round.
        self._round: Iterator[int] = iter(())

    @property
    def total(self) -> int:
        """Number of the jobs that run."""
        return len(self._running.key_of) + self._cancelled.total() + self._again.total()

    def of_key(self, key: str) -> int:
        """Count the jobs of a key that run."""
        return self._running.of_key.get(key, 0) + self._cancelled[key] + self._again[key]

    def keys_with(self, number: int) -> list[str]:
        """List the keys with at least this number of running jobs."""
        keys = {*self._running.of_key, *self._cancelled, *self._again}
        return [key for key in keys if key and self.of_key(key) >= number]

    def rebuild(self) -> None:
        """Read from the table which jobs run."""
        jobs = running.in_flight(self._connection, self._queue)
        self._running = CountedJobs((job_id, key) for job_id, key in jobs if job_id is not None)
        self._cancelled = Counter(key for job_id, key in jobs if job_id is None)
        self._again.clear()

    def add(self, job_id: int, key: str) -> None:
        """Note that a job runs from now on."""
        if not self._running.add(job_id, key):
            self._again[key] += 1

    def look(self) -> set[str]:
        """Ask which jobs have ended, of some thousand of those that are known; returns their keys, '' for none.

        To be called in autocommit mode: what the table shows must not be older than the last look.
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
            # A round may name jobs that have ended since it began.
            if key is not None:
                ended.add(key)
        return ended

    def _next_ids(self) -> list[int]:
        ids = list(islice(self._round, _LOOK_LIMIT))
        if len(ids) < _LOOK_LIMIT:
            # A job that is asked for twice does no harm.
            self._round = iter(list(self._running.key_of))
            ids += islice(self._round, _LOOK_LIMIT - len(ids))
        return ids
