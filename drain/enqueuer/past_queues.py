"""Names of queues that are no longer used: Redis forgets them, so that they are not counted or listed for ever."""

from __future__ import annotations

from collections.abc import Set

from drain.enqueuer.chores import Chore
from drain.enqueuer.enqueuer import Enqueuer


class PastQueues(Chore):
    """Forgets queues that have been idle at two looks in a row; counts names.

    The tables are not asked: a waiting row need not keep the name, since its push enters the queue again, in the same
    step that writes the id.

    Args:
        enqueuer: Knows which queues were in use lately, and is connected to Redis.
    """

    pause_seconds = 600.0

    def __init__(self, enqueuer: Enqueuer) -> None:
        super().__init__(enqueuer.connection)
        self._enqueuer = enqueuer
        self._idle_before: Set[str] = frozenset()

    def _work(self) -> int:
        redis = self._enqueuer.redis
        idle = redis.queues_fed() - self._enqueuer.deliveries.queues
        gone, self._idle_before = idle & self._idle_before, idle
        return redis.forget_queues(gone)
