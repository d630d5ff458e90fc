"""Deliveries with RQ dependents whose jobs run under an earlier one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

from drain.tables import finishes
from drain.wire import Consumer, PoppedId
from drain.workers.execution.rq_books import RQBooks
from drain.workers.lease.database import Database

LOOK_SECONDS = 1.0
# Oldest forgotten first.
_MOST = 1000


class OvertakenDeliveries:
    """Releases dependents of unclaimed deliveries once their jobs are finished.

    The worker that finishes a job under an earlier delivery does not know the later one, nor does any worker know a
    delivery whose finish PostgreSQL left unanswered.

    Args:
        database: The fetcher's; only its thread releases.
    """

    def __init__(self, database: Database, consumer: Consumer, books: RQBooks) -> None:
        self._database = database
        self._consumer = consumer
        self._books = books
        self._deliveries: deque[PoppedId] = deque(maxlen=_MOST)
        self._look_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._deliveries)

    def add(self, deliveries: Iterable[PoppedId]) -> None:
        """Remember deliveries with dependents; for any thread."""
        self._deliveries.extend(deliveries)

    def release_when_due(self) -> None:
        """Release, at most once per `LOOK_SECONDS`."""
        if self._deliveries and monotonic() >= self._look_at:
            self._look_at = monotonic() + LOOK_SECONDS
            self.release()

    def release(self) -> None:
        """Release dependents whose jobs are finished.

        Raises:
            UnavailableError: A store is unavailable; the deliveries are kept.
        """
        waiting = list(self._deliveries)
        if not waiting:
            return
        ids = [each.job_id for each in waiting if each.job_id is not None]
        are_finished = self._database.ask(lambda c: finishes.are_finished(c, ids))
        queues = {each.rq_id: each.queue for each in waiting if are_finished.get(each.job_id or 0)}
        for rq_id in self._consumer.clear(list(queues)):
            self._books.finished(rq_id, queues[rq_id])
        for each in waiting:
            # A redelivery takes dependents along; those of a dead job are never released.
            if are_finished.get(each.job_id or 0) is not False:
                with suppress(ValueError):
                    self._deliveries.remove(each)
