"""Due retries under rules, which need a slot and a token too."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

from drain.admission.allowances import Allowances
from drain.admission.ordering import Ordering
from drain.admission.running import RunningJobs
from drain.database.postgres import Connection
from drain.tables import running
from drain.tables.keyed import Paused

# Pause per duration of a search, which may step over many held retries.
_PAUSE = 9
# Each leaves out the keys that the last one filled.
_SEARCHES = 4
# Retries whose keys get room kept.
_KEYS_LEFT = 100
# Least rows per search, which held keys must not use up.
_LEAST = 100
# Keys with a blocked first retry per round.
_SLICE = 1000


class DueRetries:
    """Due retries of one queue; only an ordered one has an `ordering`."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        paused: Paused,
        running_jobs: RunningJobs,
        allowances: Allowances,
        ordering: Ordering | None,
    ) -> None:
        self._paused = paused
        self._connection = connection
        self._queue = queue
        self._running = running_jobs
        self._allowances = allowances
        self._ordering = ordering
        # Keys with retries behind a dead job; and behind another, least recently checked first.
        self._dead: Collection[str] = ()
        self._behind: dict[str, None] = {}
        self._next_at = self._look_for_left_at = 0.0
        # Keys of retries found last; and left.
        self._keys: dict[int, str] = {}
        self._left: Collection[str] = ()

    def follow(self, paused: Paused) -> None:
        """Skip exactly these jobs."""
        self._paused = paused

    def find(self, limit: int) -> list[int]:
        """Find up to `limit` retries that may be admitted, earliest first."""
        began = monotonic()
        self._keys = {}
        if limit <= 0 or began < self._next_at:
            return []
        left: dict[str, int] = {}
        if self._ordering:
            self._dead = self._ordering.dead(self._dead)
            self._first_of([(0, key) for key in list(self._behind)[:_SLICE]])
        keep = set(self._paused.keys).union(self._allowances.retries_keep(), self._dead, self._behind)
        most = max(limit, _LEAST)
        for _ in range(_SEARCHES):
            rows = self._search(most, keep)
            self._choose(rows, left, limit)
            # Keys with room left were chosen as often as found.
            filled = {key for key, number in left.items() if number <= 0}
            if len(rows) < most or len(self._keys) >= limit or filled <= keep:
                break
            keep |= filled
        self._next_at = monotonic() + _PAUSE * (monotonic() - began)
        return list(self._keys)

    def keys_left(self) -> Collection[str]:
        """Keys, or '', of unpaused retries not found last."""
        began = monotonic()
        if began >= self._look_for_left_at:
            rows = self._search(_KEYS_LEFT + len(self._keys), self._paused.keys)
            self._left = {key for job_id, key in self._first_of(rows) if job_id not in self._keys}
            self._look_for_left_at = monotonic() + _PAUSE * (monotonic() - began)
        return self._left

    def key_of(self, job_id: int) -> str:
        """Key, or '', of a retry found last."""
        return self._keys.get(job_id, "")

    def _search(self, limit: int, keep: Collection[str]) -> list[tuple[int, str]]:
        return running.due_retries(self._connection, self._queue, limit, self._paused, keep)

    def _choose(self, rows: list[tuple[int, str]], left: dict[str, int], limit: int) -> None:
        for job_id, key in self._first_of(rows):
            if key not in left:
                left[key] = self._allowances.of_retries(key)
            if left[key] > 0 and job_id not in self._keys and len(self._keys) < limit:
                left[key] -= 1
                self._keys[job_id] = key
        # Keys whose first retry may not begin.
        left.update((key, 0) for _, key in rows if key not in left)

    def _first_of(self, rows: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """In an ordered queue, replace retries by the first of their key, if it may begin.

        That is the lowest id, due or not. A lower staged, due id goes first.
        """
        if self._ordering is None:
            return rows
        keys = {key for _, key in rows if key}
        dead = self._ordering.dead(keys)
        self._dead = dead.union(self._dead)
        first = running.first_retries(self._connection, self._queue, keys - dead, self._paused)
        behind = self._ordering.staged_before({key: job_id for key, (job_id, _) in first.items()})
        chosen: dict[int, str] = {}
        for key in keys:
            self._behind.pop(key, None)
        for job_id, key in rows:
            first_id, may_begin = first.get(key, (job_id, not key))
            if may_begin and key not in behind:
                chosen[first_id] = key
            elif key in first:
                self._behind[key] = None
        return list(chosen.items())
