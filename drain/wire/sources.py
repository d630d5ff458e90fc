"""Lists that a worker pops ids from, and those among them that it skips for now."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from time import monotonic

from drain.wire.keys import queue_key

log = logging.getLogger(__name__)

# Time for which a list with ids of another database at its head is skipped: the workers of that database pop them.
_SKIPPED_SECONDS = 1.0


class SourceLists:
    """Lists of a worker's queues.

    Args:
        queues: Names of the queues, the first of which comes first.
        only_tracked: Names of the queues in which only tracked jobs run.

    Attributes:
        keys: Keys of the lists, in the order of the queues.
    """

    def __init__(self, queues: Sequence[str], only_tracked: Collection[str]) -> None:
        self.keys = [queue_key(queue) for queue in queues]
        self._only_tracked = {queue_key(queue) for queue in only_tracked}
        self._skipped_until: dict[str, float] = {}
        self._no_lists: list[str] = []

    @property
    def modes(self) -> str:
        """Letter for each key, as `pop.lua` reads them."""
        return "".join(map(self._mode, self.keys))

    @property
    def ready(self) -> list[str]:
        """Keys on which a worker can wait: they are lists, and not skipped."""
        return [key for key in self.not_skipped if key not in self._no_lists]

    @property
    def not_skipped(self) -> list[str]:
        """Keys that are not skipped for now."""
        return [key for key in self.keys if not self._is_skipped(key)]

    def takes_only_tracked(self, queue: str) -> bool:
        """Return whether only tracked jobs run in the queue."""
        return queue_key(queue) in self._only_tracked

    def skip(self, queue: str) -> None:
        """Skip the queue's list for a moment."""
        self._skipped_until[queue_key(queue)] = monotonic() + _SKIPPED_SECONDS

    def report_no_lists(self, keys: list[str]) -> None:
        """Note which keys are no lists, and log those that are new."""
        for key in keys:
            if key not in self._no_lists:
                log.error(
                    "%s is no list; its jobs wait until you rename that key", key, extra={"event": "no_list"}
                )
        self._no_lists = keys

    def _mode(self, key: str) -> str:
        if self._is_skipped(key):
            return "s"
        return "t" if key in self._only_tracked else "p"

    def _is_skipped(self, key: str) -> bool:
        return self._skipped_until.get(key, 0.0) > monotonic()
