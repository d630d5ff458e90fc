"""Waiting jobs of each queue by cause, for the metrics, every few seconds.

Read from the tables, so that `drain status` and `drain explain` agree.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping

import psycopg

from drain import metrics
from drain.database.postgres import Connection
from drain.read import waiting_by_cause
from drain.read.waiting_by_cause import Waiting

log = logging.getLogger(__name__)

# Rows counted per queue, lane or state.
_COUNT_UP_TO = 10_000


class WaitingJobs:
    """A cause seen once keeps its gauge; `latest` has numbers by queue and cause."""

    def __init__(self) -> None:
        self.latest: Mapping[str, Waiting] = {}
        self._seen: set[tuple[str, str]] = set()
        self._refused = False

    def run_once(self, connection: Connection, queues: Collection[str]) -> None:
        """Measure; warn once if the role may not read the tables.

        Args:
            queues: With their own labels; others are counted up to a bound.
        """
        if self._refused:
            return
        try:
            self.latest = waiting_by_cause.count_waiting(connection, _COUNT_UP_TO, named=queues)
            self._show(self.latest)
        except psycopg.errors.InsufficientPrivilege as error:
            self._refused = True
            reason = error.diag.message_primary
            log.warning(
                "drain_waiting_jobs is not measured (%s); run `drain roles --apply`",
                reason,
                extra={"event": "not_measured"},
            )

    def _show(self, waiting: Mapping[str, Mapping[str, int]]) -> None:
        numbers = Counter(dict.fromkeys(self._seen, 0))
        for queue, by_cause in waiting.items():
            for cause, number in by_cause.items():
                numbers[metrics.queue_label(queue), cause] += number
        for labels, number in numbers.items():
            metrics.WAITING.labels(*labels).set(number)
        self._seen = set(numbers)
