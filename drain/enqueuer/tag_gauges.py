"""Gauges of the jobs that are next in line, by tag; the leader measures them every few seconds."""

from __future__ import annotations

from collections.abc import Collection

from drain import metrics
from drain.database.postgres import Connection
from drain.enqueuer.optional_gauge import OptionalGauge
from drain.tables import tags

# Upper bounds of the rows that are read, and of the tags that are shown: applications choose tags, and may choose many.
_ROWS = 10_000
_TAGS = 100


class TagGauges:
    """Measures in each term of a process as leader; a tag that has no waiting job any more has no gauges."""

    def __init__(self) -> None:
        self._queues: Collection[str] = ()
        self._gauge = OptionalGauge("drain_tag_waiting_jobs", self._measure)
        self._shown: set[str] = set()

    def run_once(self, connection: Connection, queues: Collection[str]) -> None:
        """Measure if it is time.

        Args:
            connection: The leader's.
            queues: The queues that are known to have had jobs.

        Raises:
            psycopg.Error: The connection is broken.
        """
        self._queues = queues
        self._gauge.run_once(connection)

    def clear(self) -> None:
        """Remove the gauges that only a leader has."""
        self._shown.clear()
        metrics.TAG_WAITING.clear()
        metrics.TAG_WAIT.clear()

    def _measure(self, connection: Connection) -> None:
        found = tags.count_tags(connection, self._queues, most=_ROWS, tags=_TAGS)
        for tag, number, seconds in found:
            metrics.TAG_WAITING.labels(tag).set(number)
            metrics.TAG_WAIT.labels(tag).set(seconds)
        shown = {tag for tag, _, _ in found}
        for tag in self._shown - shown:
            metrics.TAG_WAITING.remove(tag)
            metrics.TAG_WAIT.remove(tag)
        self._shown = shown
