"""Lists that a worker pops ids from, and those among them that it skips for now."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from time import monotonic

from drain.wire.keys import intermediate_key, queue_key, queue_of

log = logging.getLogger(__name__)

# Time for which a list with ids of another database at its head is skipped: the workers of that database pop them.
_SKIPPED_SECONDS = 1.0


class SourceLists:
    """Lists of a worker's queues.

    Args:
        queues: Names of the queues, the first of which comes first.
        only_tracked: Names of the queues in which only tracked jobs run.
        rotates: The lists take turns: the one that was popped from last comes last.

    Attributes:
        keys: Keys of the lists, in the order of pops.
    """

    def __init__(
        self, queues: Sequence[str], only_tracked: Collection[str], *, rotates: bool = False
    ) -> None:
        self.keys = [queue_key(queue) for queue in queues]
        self._rotates = rotates
        self._only_tracked = {queue_key(queue) for queue in only_tracked}
        self._skipped_until: dict[str, float] = {}
        self._no_lists: set[str] = set()

    def modes(self, *, tracked: bool, plain: bool) -> str:
        """Letter for each key, as `pop.lua` reads them: whether tracked and plain jobs are wanted."""
        return "".join(self._mode(key, tracked=tracked, plain=plain) for key in self.keys)

    @property
    def ready(self) -> list[str]:
        """Keys on which a worker can wait: they are lists, and not skipped."""
        return [key for key in self.not_skipped if self._no_lists.isdisjoint((key, _intermediate(key)))]

    @property
    def not_skipped(self) -> list[str]:
        """Keys that are not skipped for now."""
        return [key for key in self.keys if not self._is_skipped(key)]

    def takes_only_tracked(self, queue: str) -> bool:
        """Return whether only tracked jobs run in the queue."""
        return queue_key(queue) in self._only_tracked

    def popped_from(self, queue: str) -> None:
        """Let the lists behind that of the queue come first from now on, if they take turns."""
        if self._rotates:
            behind = self.keys.index(queue_key(queue)) + 1
            self.keys = [*self.keys[behind:], *self.keys[:behind]]

    def skip(self, queue: str) -> None:
        """Skip the queue's list for a moment."""
        self._skipped_until[queue_key(queue)] = monotonic() + _SKIPPED_SECONDS

    def report_no_lists(self, keys: Collection[str]) -> None:
        """Note which keys, of lists and of RQ's intermediate lists, are not lists, and log those that are new."""
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
