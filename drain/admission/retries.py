"""Due retries of a queue with rules: which may be delivered again. They need a slot and a token, too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from time import monotonic

from drain.admission.allowances import Allowances
from drain.admission.running import RunningJobs
from drain.database.postgres import Connection
from drain.tables import running
from drain.tables.keyed import Paused

# Pause after a search, as a multiple of its duration: it may step over many retries of keys that are kept back.
_PAUSE = 9
# Number of searches at a time: each leaves out the keys that the one before has filled.
_SEARCHES = 4
# Upper bound of the retries whose keys are looked at to keep room for them.
_KEYS_LEFT = 100


class DueRetries:
    """Due retries of one queue, on the leader's connection.

    Args:
        connection: The leader's.
        queue: Name of the queue.
        paused: Jobs that are passed over.
        running_jobs: Its running jobs.
        allowances: How many may begin.
        held: Finds the keys with a dead job, in an ordered queue; None in others.
    """

    def __init__(
        self,
        connection: Connection,
        queue: str,
        paused: Paused,
        running_jobs: RunningJobs,
        allowances: Allowances,
        held: Callable[[Iterable[str]], Collection[str]] | None,
    ) -> None:
        self._paused = paused
        self._connection = connection
        self._queue = queue
        self._running = running_jobs
        self._allowances = allowances
        self._held = held
        self._next_at = 0.0
        # Keys of the retries that were found last.
        self._keys: dict[int, str] = {}

    def find(self, limit: int) -> list[int]:
        """Find up to `limit` due retries that may be admitted now, the earliest first."""
        began = monotonic()
        self._keys = {}
        if limit <= 0 or began < self._next_at:
            return []
        left: dict[str, int] = {}
        keep = set(self._paused.keys).union(self._allowances.retries_keep())
        for _ in range(_SEARCHES):
            rows = self._search(limit, keep)
            self._choose(rows, left, limit)
            # Those with room left have been chosen as often as they were found.
            filled = {key for key, number in left.items() if number <= 0}
            if len(rows) < limit or len(self._keys) >= limit or filled <= keep:
                break
            keep |= filled
        self._next_at = monotonic() + _PAUSE * (monotonic() - began)
        return list(self._keys)

    def keys_left(self) -> set[str]:
        """Find keys of due retries that were not found last and are not paused; '' for retries without a key."""
        rows = self._search(_KEYS_LEFT + len(self._keys), self._paused.keys)
        return {key for job_id, key in rows if job_id not in self._keys}

    def key_of(self, job_id: int) -> str:
        """Return the key of a retry that was found last; '' for none."""
        return self._keys.get(job_id, "")

    def _search(self, limit: int, keep: Collection[str]) -> list[tuple[int, str]]:
        return running.due_retries(
            self._connection,
            self._queue,
            limit,
            leave_keys=keep,
            leave_names=self._paused.names,
            leave_pairs=self._paused.pairs,
        )

    def _choose(self, rows: list[tuple[int, str]], left: dict[str, int], limit: int) -> None:
        """Choose retries of these, as far as their keys have room."""
        held = self._held({key for _, key in rows}) if self._held else ()
        first = self._running.first_retries() if self._held else {}
        for job_id, key in rows:
            if job_id in self._keys:
                continue
            if key not in left:
                left[key] = 0 if key in held else self._allowances.of_retries(key)
            # In an ordered queue a retry with a lower id goes first, although it is not due yet.
            if left[key] > 0 and first.get(key, job_id) >= job_id and len(self._keys) < limit:
                left[key] -= 1
                self._keys[job_id] = key
            elif first.get(key, job_id) < job_id:
                left[key] = 0
