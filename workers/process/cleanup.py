"""Clearing of ended deliveries' Redis hashes."""

from __future__ import annotations

from contextlib import suppress

from drain.errors import UnavailableError
from drain.wire import Consumer
from drain.workers.execution.rq_books import RQBooks
from drain.workers.stores import REDIS, Stores, answering

# While Redis is unavailable.
_MOST_UNCLEARED = 100_000


class UnclearedDeliveries:
    """Remembers deliveries until cleared. Any thread adds; one thread calls `clear`."""

    def __init__(self, consumer: Consumer, stores: Stores, books: RQBooks) -> None:
        self._consumer = consumer
        self._stores = stores
        self._books = books
        self._finished: list[tuple[str, str]] = []
        self._unfinished: list[str] = []
        self._kept: list[int] = []

    def finished(self, rq_id: str, queue: str) -> None:
        """Clear a finished hash, and release its RQ dependents."""
        self._finished.append((rq_id, queue))

    def unfinished(self, rq_id: str) -> None:
        """Clear another hash, unless RQ jobs depend on it."""
        self._unfinished.append(rq_id)

    def kept(self, job_id: int) -> None:
        """Announce the end of a job that keeps its result, if Redis is available."""
        self._kept.append(job_id)

    def clear(self) -> None:
        """Clear all; without Redis, the next call retries."""
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
        # Waiting callers also poll the table.
        with suppress(UnavailableError), answering(self._stores, REDIS):
            self._consumer.tell(kept)
