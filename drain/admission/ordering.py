"""Order within a key: which keys of an ordered queue must not go on now, because of a dead job or a revived one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from drain.admission.allowances import Allowances
from drain.admission.sources import Source
from drain.tables import keyed

# Pause before a key with a dead job is looked at again.
_HELD_SECONDS = 0.5
# Number of keys whose last job is remembered.
_MOST_KEYS = 100_000


class Ordering:
    """Dead and revived jobs of one ordered queue.

    Args:
        source: The streams of the queue.
        allowances: Told which keys are held.
        hold: A dead job holds its key.
    """

    def __init__(self, source: Source, allowances: Allowances, *, hold: bool) -> None:
        self._source = source
        self._allowances = allowances
        self._hold = hold
        # Last job of a key that was admitted, the latest one last.
        self._last: dict[str, int] = {}
        # Keys that had a dead job when they were last looked at.
        self._were_held: set[str] = set()

    def admitted(self, key: str, job_id: int) -> None:
        """Note that a job is the last of its key that was admitted."""
        self._last.pop(key, None)
        self._last[key] = job_id
        if len(self._last) > _MOST_KEYS:
            del self._last[next(iter(self._last))]

    def vet(self, keys: Sequence[str]) -> Collection[str]:
        """Find the keys among these that are held, in the transaction that reads their rows.

        The last job of each key is no longer in flight. In this one snapshot it has finished, is dead, or is staged
        again: then the key is read from that job on. A key that was held is read from its beginning: its dead job may
        have been admitted by an earlier leader.
        """
        source = self._source
        held = self.held(keys)
        released = [key for key in keys if key in self._were_held and key not in held]
        self._were_held.difference_update(released)
        last = [self._last[key] for key in keys if key in self._last]
        revived = keyed.staged_again(source.connection, last) if last else []
        revived += keyed.heads_of(source.connection, source.queue, released) if released else []
        for head in revived:
            if source.stream(head) in source.cursors:
                source.notice(head)
        return held

    def held(self, keys: Iterable[str]) -> Collection[str]:
        """Find the keys among these that have a dead job, and hold them for a moment."""
        asked = [key for key in keys if key] if self._hold else []
        if not asked:
            return ()
        dead = keyed.keys_with_dead_jobs(self._source.connection, self._source.queue, asked)
        for key in dead:
            self._allowances.hold(key, _HELD_SECONDS)
        self._were_held.update(dead)
        return dead
