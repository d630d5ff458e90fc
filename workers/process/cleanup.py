"""Deliveries of jobs that have ended: their hashes in Redis are cleared, many in one command."""

from __future__ import annotations

from contextlib import suppress

from drain.errors import UnavailableError
from drain.wire import Consumer
from drain.workers.execution.rq_books import RQBooks
from drain.workers.stores import REDIS, Stores, answering

# Upper bound of the deliveries whose hashes could not be cleared while Redis was away.
_MOST_UNCLEARED = 100_000


class UnclearedDeliveries:
    """Remembers deliveries until their hashes are cleared. Any thread may add one; one thread calls `clear`.

    Args:
        consumer: Connection to Redis.
        stores: State of the stores, to which an answer of Redis and its absence are reported.
        books: Notes for RQ about jobs that others depend on.
    """

    def __init__(self, consumer: Consumer, stores: Stores, books: RQBooks) -> None:
        self._consumer = consumer
        self._stores = stores
        self._books = books
        self._finished: list[tuple[str, str]] = []
        self._unfinished: list[str] = []
        self._kept: list[int] = []

    def finished(self, rq_id: str, queue: str) -> None:
        """Clear the hash of a finished job's delivery with the next ones, and release RQ jobs that depend on it."""
        self._finished.append((rq_id, queue))

    def unfinished(self, rq_id: str) -> None:
        """Clear the hash of another delivery with the next ones, unless RQ jobs depend on it."""
        self._unfinished.append(rq_id)

    def kept(self, job_id: int) -> None:
        """Tell with the next ones that a job has ended which keeps its result; if Redis is away, nobody is told."""
        self._kept.append(job_id)

    def clear(self) -> None:
        """Clear the hashes of all these deliveries; if Redis is away, the next call tries again."""
        if self._kept:
            self._tell()
        finished, self._finished = self._finished, []
        unfinished, self._unfinished = self._unfinished, []
        if not finished and not unfinished:
            return
        try:
            with answering(self._stores, REDIS):
                awaited = self._consumer.clear([rq_id for rq_id, _ in finished])
                if unfinished:
                    self._consumer.clear_unless_awaited(unfinished)
            queues = dict(finished)
            for rq_id in awaited:
                self._books.finished(rq_id, queues[rq_id])
        except UnavailableError:
            self._finished = finished[-_MOST_UNCLEARED:] + self._finished
            self._unfinished = unfinished[-_MOST_UNCLEARED:] + self._unfinished

    def _tell(self) -> None:
        kept, self._kept = self._kept, []
        # Whoever waits looks at the table once a second in any case.
        with suppress(UnavailableError), answering(self._stores, REDIS):
            self._consumer.tell(kept)
