"""Overtaken deliveries: plain RQ jobs depend on them, but their jobs run under an earlier delivery."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

from drain.tables import finishes
from drain.wire import Consumer, PoppedId
from drain.workers.execution.rq_books import RQBooks
from drain.workers.lease.database import Database

# Interval at which the jobs of overtaken deliveries are looked up.
LOOK_SECONDS = 1.0
# Upper bound of the deliveries that are remembered; the oldest are forgotten first.
_MOST = 1000


class OvertakenDeliveries:
    """Releases the dependents of deliveries that no claim wanted, once their jobs are finished.

    The worker that finishes a job under an earlier delivery knows neither the later delivery nor its dependents. Nor
    does anyone know of a delivery whose finish was not answered before PostgreSQL went away.

    Args:
        database: Connection of the fetcher, whose thread alone calls `release` and `release_when_due`.
        consumer: Connection to Redis.
        books: Notes for RQ about released dependents.
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
        """Remember deliveries whose dependents wait; for any thread."""
        self._deliveries.extend(deliveries)

    def release_when_due(self) -> None:
        """Do as `release`, at most once in `LOOK_SECONDS`."""
        if self._deliveries and monotonic() >= self._look_at:
            self._look_at = monotonic() + LOOK_SECONDS
            self.release()

    def release(self) -> None:
        """Release the dependents of those whose jobs are finished by now.

        Raises:
            UnavailableError: A store is away; the deliveries are remembered.
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
            # A redelivery takes the dependents along, and the dependents of a dead job are never released.
            if are_finished.get(each.job_id or 0) is not False:
                with suppress(ValueError):
                    self._deliveries.remove(each)
