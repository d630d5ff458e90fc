"""Queues whose jobs are pushed as thin deliveries: only `drain work` listens on them, which needs no hash.

RQ's registry of workers tells, and is read about once a second for the queues that have been pushed to since. A stock
`rq worker` that comes in between drops the ids that it pops, and redelivery pushes these jobs again, with hashes.

A stock worker registers once, when it starts, and again with each of our jobs that it runs. So the registry may lack it
after Redis has lost data. Redis then remembers for an hour that the queues get whole deliveries, whoever leads.

Only a job's first delivery is thin: whatever is delivered again, for whatever reason, has a hash that every worker can
run.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from time import monotonic

from drain.wire import Producer

log = logging.getLogger(__name__)

# Name that stands for all queues.
ALL = "*"
# Time between two looks at the registry, and for how long what it says is trusted.
_LOOK_SECONDS = 1.0
_TRUSTED_SECONDS = 2.5


class ThinQueues:
    """Chooses the queues for one leader; only its thread calls this.

    Args:
        redis: The producer for the Redis in which the workers register.
        always: Names of the queues whose jobs are always pushed so, by hand; "*" for all.
        never: Names of the queues whose jobs are never pushed so; "*" for all.
    """

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
        """Return those of these queues, to which jobs are about to be pushed, that need no hashes."""
        asked = {queue for queue in queues if not self._is_set_by_hand(queue)}
        self._busy |= asked
        is_trusted = monotonic() - self._looked_at < _TRUSTED_SECONDS
        found = asked & self._found if is_trusted else set[str]()
        return found | {queue for queue in queues if queue not in asked and self._is_always(queue)}

    def look_when_due(self) -> None:
        """Look who listens on the queues that jobs have been pushed to since the last look, if it is time.

        Raises:
            UnavailableError: Redis.
        """
        if self._busy and monotonic() - self._looked_at >= _LOOK_SECONDS:
            busy, self._busy = self._busy, set()
            self._found = self._redis.need_no_hash(sorted(busy))
            self._looked_at = monotonic()

    def distrust(self, queue: str | None = None) -> None:
        """Push whole deliveries to a queue, or to all queues, for an hour: RQ's registry may lack a stock worker.

        Raises:
            UnavailableError: Redis.
        """
        self._redis.need_hashes(queue)
        self._found = set() if queue is None else self._found - {queue}
        which = "all queues" if queue is None else f"queue {queue}"
        log.info("%s: deliveries have a hash for an hour", which, extra={"event": "whole_deliveries"})

    def _is_set_by_hand(self, queue: str) -> bool:
        return self._is_always(queue) or queue in self._never or ALL in self._never

    def _is_always(self, queue: str) -> bool:
        # A name goes before the star.
        return queue in self._always or (ALL in self._always and queue not in self._never)
