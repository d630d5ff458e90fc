"""Queues with thin deliveries: only `drain work` listens, and it needs no hashes.

RQ's registry of workers decides, read about once a second. A stock `rq worker` that starts in between drops the ids it
pops, and redelivery pushes these jobs with hashes, as always.

After Redis loses data, the registry may lack a stock worker until its next job. Redis then remembers for an hour,
across leaders, that whole deliveries are needed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from time import monotonic

from drain.wire import Producer

log = logging.getLogger(__name__)

ALL = "*"
# Between looks; and validity of an answer.
_LOOK_SECONDS = 1.0
_TRUSTED_SECONDS = 2.5


class ThinQueues:
    """Chooses queues for one leader; `always` and `never` name queues, "*" all."""

    def __init__(
        self, redis: Producer, always: Collection[str] = frozenset(), never: Collection[str] = frozenset()
    ) -> None:
        self._redis = redis
        self._always = always
        self._never = never
        self._busy: set[str] = set()
        self._found: set[str] = set()
        self._looked_at = -_TRUSTED_SECONDS

    def choose(self, queues: Collection[str]) -> set[str]:
        """Return these queues that need no hashes."""
        asked = {queue for queue in queues if not self._is_set_by_hand(queue)}
        self._busy |= asked
        is_trusted = monotonic() - self._looked_at < _TRUSTED_SECONDS
        found = asked & self._found if is_trusted else set[str]()
        return found | {queue for queue in queues if queue not in asked and self._is_always(queue)}

    def look_when_due(self) -> None:
        """Look up, if due, the listeners of queues pushed to since."""
        if self._busy and monotonic() - self._looked_at >= _LOOK_SECONDS:
            busy, self._busy = self._busy, set()
            self._found = self._redis.need_no_hash(sorted(busy))
            self._looked_at = monotonic()

    def distrust(self, queue: str | None = None) -> None:
        """Push whole deliveries to a queue, or all, for an hour."""
        self._redis.need_hashes(queue)
        self._found = set() if queue is None else self._found - {queue}
        which = "all queues" if queue is None else f"queue {queue}"
        log.info("%s: deliveries have a hash for an hour", which, extra={"event": "whole_deliveries"})

    def _is_set_by_hand(self, queue: str) -> bool:
        return self._is_always(queue) or queue in self._never or ALL in self._never

    def _is_always(self, queue: str) -> bool:
        # A name overrides the star.
        return queue in self._always or (ALL in self._always and queue not in self._never)
