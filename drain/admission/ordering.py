"""Keys held by a dead or an earlier waiting job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from time import monotonic

from drain.admission.allowances import Allowances
from drain.database.postgres import Connection
from drain.tables import keyed
from drain.tables.staged import DueJob

# Held keys per look, and pause per duration. Measured: 30,000 keys in every batch took half a processor, and other
# queues waited for 0.3 s.
_SLICE = 1000
_PAUSE = 9
# Between full rounds.
_ROUND_SECONDS = 0.25


class Ordering:
    """Held keys of an ordered queue, in `allowances.held`; with `hold`, by dead jobs too."""

    def __init__(self, connection: Connection, queue: str, allowances: Allowances, *, hold: bool) -> None:
        self._connection = connection
        self._queue = queue
        self._allowances = allowances
        self._hold = hold
        self._round: Iterator[str] = iter(())
        self._look_at = 0.0
        # Lowest waiting retry of each key asked for last.
        self._waits: dict[str, int] = {}

    @property
    def next_look_at(self) -> float:
        """Time by `monotonic()` of the next look; infinite without held keys."""
        return self._look_at if self._allowances.held else float("inf")

    def vet(self, keys: Iterable[str]) -> Collection[str]:
        """Return held keys, in the transaction that reads their rows."""
        found = self._held(keys, waiting=True)
        self._allowances.held.update(found)
        return found

    def is_behind(self, row: DueJob) -> bool:
        """Return whether a retry found by `vet` goes first.

        At read committed, the earlier job that let its key pass may be gone when the rows are read.
        """
        return row.key is not None and self._waits.get(row.key, row.id) < row.id

    def dead(self, keys: Iterable[str]) -> set[str]:
        """Return keys held by a dead job."""
        return self._held(keys, waiting=False) if self._hold else set()

    def look(self) -> Collection[str]:
        """Check some held keys, if due, in autocommit mode; return free ones."""
        held, began = self._allowances.held, monotonic()
        if not held or began < self._look_at:
            return ()
        keys = list(islice(self._round, _SLICE))
        is_whole = len(keys) < _SLICE
        if is_whole:
            self._round = iter(list(held))
            keys += islice(self._round, _SLICE - len(keys))
        free = set(keys).difference(self._held(keys, waiting=True))
        held.difference_update(free)
        now = monotonic()
        self._look_at = now + max(_ROUND_SECONDS if is_whole else 0.0, _PAUSE * (now - began))
        return free

    def _held(self, keys: Iterable[str], *, waiting: bool) -> set[str]:
        asked = [key for key in keys if key]
        if not asked:
            return set()
        held = keyed.held_keys(self._connection, self._queue, asked, dead=self._hold, waiting=waiting)
        waits = {key: job_id for key, job_id in held.items() if job_id is not None}
        if waiting:
            for key in asked:
                self._waits.pop(key, None)
            self._waits.update(waits)
        return held.keys() - self.staged_before(waits)

    def staged_before(self, waits: Mapping[str, int]) -> set[str]:
        """Keys with a staged, due job older than the waiting retry."""
        if not waits:
            return set()
        first = keyed.first_of_keys(self._connection, self._queue, list(waits))
        return {key for key, found in first.items() if found.id < waits[key]}
