"""Delivery numbers, the watermark up to which all are pushed, and the known queues.

Each delivery of a tracked job has a higher number than all before it. A number is recorded in the transaction that uses
it, the watermark after the push. If a leader dies in between, the next one pushes the jobs above the watermark again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager

from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import leader_progress
from drain.tables.leader_progress import Progress


class Deliveries:
    """Owner of the numbers, on the leader's thread; continues from the last leader's."""

    def __init__(self, connection: Connection, progress: Progress) -> None:
        self._connection = connection
        self._last_delivery, self._pushed_up_to = progress
        self._recorded = (self._last_delivery, self._pushed_up_to)
        self._queues: set[str] = set()
        self._watermark_is_held = False

    @property
    def last_delivery(self) -> int:
        """Highest number used by a committed transaction."""
        return self._last_delivery

    @property
    def pushed_up_to(self) -> int:
        """Watermark: all up to it were pushed, or refused."""
        return self._pushed_up_to

    @property
    def queues(self) -> Set[str]:
        """Known queues of tracked jobs."""
        return self._queues

    def record(self, last_delivery: int) -> None:
        """Record numbers up to this one as used, even if the move rolls back; call `committed` after the commit."""
        leader_progress.record_progress(self._connection, last_delivery, self._pushed_up_to)

    def committed(self, last_delivery: int) -> None:
        """Count numbers up to this one as used by a committed transaction."""
        self._last_delivery = last_delivery
        self._recorded = (last_delivery, self._pushed_up_to)

    def pushed(self, up_to: int, queues: Iterable[str]) -> None:
        """Raise the watermark; remember the queues."""
        self.remember_queues(queues)
        if not self._watermark_is_held:
            self._pushed_up_to = up_to

    def remember_queues(self, queues: Iterable[str]) -> None:
        """Add queues."""
        self._queues.update(queues)

    def forget_queues(self, queues: Iterable[str]) -> None:
        """Forget queues until their next push."""
        self._queues.difference_update(queues)

    @contextmanager
    def held_watermark(self) -> Iterator[None]:
        """Keep the watermark while the block pushes higher numbers first; on success raise it to the last.

        Lower numbers may still need a push if this leader dies in the block.
        """
        self._watermark_is_held = True
        try:
            yield
        finally:
            self._watermark_is_held = False
        self._pushed_up_to = self._last_delivery

    def record_watermark(self) -> None:
        """Record numbers and watermark, if changed."""
        if self._recorded != (self._last_delivery, self._pushed_up_to):
            leader_progress.record_progress(self._connection, self._last_delivery, self._pushed_up_to)
            self._recorded = (self._last_delivery, self._pushed_up_to)
            failpoint(FailurePoint.WATERMARK_MOVED)
