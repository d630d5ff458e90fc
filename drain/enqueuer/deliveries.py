"""Delivery numbers of the leader, the watermark below which all are pushed, and the queues that it knows.

Each delivery of a tracked job has a number, higher than all before it: redelivery compares the number of a row in
`inflight_jobs` with those that stand in Redis. Numbers are recorded in the transaction that hands them out, and the
watermark once the push is done. A leader that dies in between leaves numbers above the watermark; the next leader
pushes those jobs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager

from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import leader_progress
from drain.tables.leader_progress import Progress


class Deliveries:
    """Owner of the numbers, the watermark and the known queues of one leader; no other object changes them.

    Not thread-safe: only the thread of the leader calls it.

    Args:
        connection: The leader's connection, on which the numbers are recorded.
        progress: Numbers that the last leader has recorded.
    """

    def __init__(self, connection: Connection, progress: Progress) -> None:
        self._connection = connection
        self._last_delivery, self._pushed_up_to = progress
        self._recorded = (self._last_delivery, self._pushed_up_to)
        self._queues: set[str] = set()
        self._watermark_is_held = False

    @property
    def last_delivery(self) -> int:
        """Highest number that a committed transaction has handed out."""
        return self._last_delivery

    @property
    def pushed_up_to(self) -> int:
        """Watermark: each delivery up to this number has been pushed to Redis, or refused by it."""
        return self._pushed_up_to

    @property
    def queues(self) -> Set[str]:
        """Names of the queues of tracked jobs that are known so far."""
        return self._queues

    def record(self, last_delivery: int) -> None:
        """Record in the open transaction that numbers up to this one are handed out.

        The record is not undone by a rollback: the numbers are then handed out again. Call `committed` after the
        commit.
        """
        leader_progress.record_progress(self._connection, last_delivery, self._pushed_up_to)

    def committed(self, last_delivery: int) -> None:
        """Count the numbers up to this one as handed out: the transaction that has recorded them is committed."""
        self._last_delivery = last_delivery
        self._recorded = (last_delivery, self._pushed_up_to)

    def pushed(self, up_to: int, queues: Iterable[str]) -> None:
        """Raise the watermark to this number, and remember the queues of what was pushed."""
        self.remember_queues(queues)
        if not self._watermark_is_held:
            self._pushed_up_to = up_to

    def remember_queues(self, queues: Iterable[str]) -> None:
        """Add names of queues with tracked jobs to the known ones."""
        self._queues.update(queues)

    def forget_queues(self, queues: Iterable[str]) -> None:
        """Remove names from the known ones, until something is pushed to these queues again."""
        self._queues.difference_update(queues)

    @contextmanager
    def held_watermark(self) -> Iterator[None]:
        """Keep the watermark while the block pushes higher numbers first; a block that succeeds raises it to the last.

        Lower numbers may still have to be pushed, should this leader die inside the block.
        """
        self._watermark_is_held = True
        try:
            yield
        finally:
            self._watermark_is_held = False
        self._pushed_up_to = self._last_delivery

    def record_watermark(self) -> None:
        """Record numbers and watermark, if that has not been done since they changed."""
        if self._recorded != (self._last_delivery, self._pushed_up_to):
            leader_progress.record_progress(self._connection, self._last_delivery, self._pushed_up_to)
            self._recorded = (self._last_delivery, self._pushed_up_to)
            failpoint(FailurePoint.WATERMARK_MOVED)
