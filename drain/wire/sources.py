"""Lists that a worker pops from."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from time import monotonic

from drain.wire.keys import intermediate_key, queue_key, queue_of

log = logging.getLogger(__name__)

# Lets the other database's workers pop foreign ids.
_SKIPPED_SECONDS = 1.0


class SourceLists:
    """Lists of a worker's queues, in order or taking turns."""

    def __init__(
        self, queues: Sequence[str], only_tracked: Collection[str], *, rotates: bool = False
    ) -> None:
        self.keys = [queue_key(queue) for queue in queues]
        self._rotates = rotates
        self._only_tracked = {queue_key(queue) for queue in only_tracked}
        self._skipped_until: dict[str, float] = {}
        self._no_lists: set[str] = set()

    def modes(self, *, tracked: bool, plain: bool) -> str:
        """Return a letter per key for `pop.lua`."""
        return "".join(self._mode(key, tracked=tracked, plain=plain) for key in self.keys)

    @property
    def ready(self) -> list[str]:
        """Keys to wait on: lists, not skipped."""
        return [key for key in self.not_skipped if self._no_lists.isdisjoint((key, _intermediate(key)))]

    @property
    def not_skipped(self) -> list[str]:
        """Keys not skipped."""
        return [key for key in self.keys if not self._is_skipped(key)]

    def takes_only_tracked(self, queue: str) -> bool:
        """Return whether the queue refuses plain jobs."""
        return queue_key(queue) in self._only_tracked

    def popped_from(self, queue: str) -> None:
        """Rotate the lists after a pop."""
        if self._rotates:
            behind = self.keys.index(queue_key(queue)) + 1
            self.keys = [*self.keys[behind:], *self.keys[:behind]]

    def skip(self, queue: str) -> None:
        """Skip a queue's list for a moment."""
        self._skipped_until[queue_key(queue)] = monotonic() + _SKIPPED_SECONDS

    def report_no_lists(self, keys: Collection[str]) -> None:
        """Record keys of other types, and log new ones."""
        for key in set(keys) - self._no_lists:
            text = "Redis key %s is not a list; the queue's jobs wait until you rename that key"
            log.error(text, key, extra={"event": "no_list"})
        self._no_lists = set(keys)

    def _mode(self, key: str, *, tracked: bool, plain: bool) -> str:
        is_skipped, only_tracked = self._is_skipped(key), key in self._only_tracked
        if not tracked:
            return "o" if plain and not is_skipped and not only_tracked else "x"
        if is_skipped:
            return "s"
        if only_tracked:
            return "t"
        return "p" if plain else "b"

    def _is_skipped(self, key: str) -> bool:
        return self._skipped_until.get(key, 0.0) > monotonic()


def _intermediate(key: str) -> str:
    return intermediate_key(queue_of(key))
