"""Admission of the leader: how many jobs each queue may take now, and when to ask again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from drain.admission.depths import Depths
from drain.tables.staged import DueJob
from drain.wire import QueueReader


class Admission:
    """Decides for one leader how many rows of a queue may leave `staged_jobs`.

    Args:
        redis: Reader of the lists.
        depth: Bound of each list; 0 for none, None to let it follow the workers.
        forward_queues: Names of the queues in forward mode, whose lists have no bound.
    """

    def __init__(self, redis: QueueReader, *, depth: int | None, forward_queues: Collection[str]) -> None:
        self._depths = Depths(redis, fixed=depth, unbounded=forward_queues)

    def room(self, queue: str) -> int:
        """Return how many jobs of the queue may leave now."""
        return self._depths.room(queue)

    def moved(self, rows: Sequence[DueJob]) -> None:
        """Count rows whose move is committed, and whose push begins."""
        self._depths.moved(Counter(row.queue for row in rows))

    def pushed(self, jobs: Mapping[str, int], lengths: Mapping[str, int]) -> None:
        """Note the numbers of jobs that were pushed, by queue, and the lengths of the lists afterwards."""
        self._depths.pushed(jobs, lengths)

    def look_when_due(self) -> None:
        """Look whether lists that were full have room again, if it is time.

        Raises:
            UnavailableError: Redis.
        """
        self._depths.look_when_due()

    @property
    def next_look_at(self) -> float:
        """Time, by `monotonic()`, at which a look may find room for rows that wait; infinite if none wait for room."""
        return self._depths.next_look_at
