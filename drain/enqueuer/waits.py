"""Waiting time of each queue's oldest job.

Bounded, wherever the job waits:

    staged     the first hundred due rows per priority of a lane, behind the enqueuer's cursors
    delivered  each queue's lowest unclaimed delivery, from redelivery's lower bound on
    retrying   each queue's earliest next_run_at, if due

A delivered row claimed before has waited since its renumbering; the leader remembers when it first saw the number.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from time import monotonic

import psycopg

from drain import metrics
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import Redelivery
from drain.tables import lanes
from drain.tables.columns import DELIVERED
from drain.tables.waiting import DUE_RETRIES, WAITS_SINCE

log = logging.getLogger(__name__)

_MOST_QUEUES = 1000
_DELIVERED = f"""
SELECT known.queue, oldest.delivery, oldest.claimed_before, date_part('epoch', clock_timestamp() - oldest.since)
FROM unnest(%s::text[], %s::bigint[]) AS known (queue, delivery), LATERAL (
    SELECT delivery, claimed_at IS NOT NULL AS claimed_before, {WAITS_SINCE} AS since FROM inflight_jobs AS job
    WHERE {DELIVERED}
        AND job.queue = known.queue AND job.delivery >= known.delivery
    ORDER BY job.delivery LIMIT 1) AS oldest
"""


class Waits:
    """Measures during a term; `refused` if the role may not read the tables."""

    def __init__(self, enqueuer: Enqueuer, redelivery: Redelivery) -> None:
        self.refused = False
        self._enqueuer = enqueuer
        self._redelivery = redelivery
        # By queue: a delivery claimed before, and when first seen.
        self._seen: dict[str, tuple[int, float]] = {}

    def measure(self, queues: Collection[str] = ()) -> dict[str, float]:
        """Measure waits in seconds; empty, after one warning, without rights.

        Args:
            queues: Measured even among more than a thousand.
        """
        if self.refused:
            return {}
        try:
            return self._measure_all(queues)
        except psycopg.errors.InsufficientPrivilege as error:
            self.refused = True
            reason = error.diag.message_primary
            log.warning(
                "drain_wait_seconds is not measured (%s); run `drain roles --apply`",
                reason,
                extra={"event": "not_measured"},
            )
            return {}

    @staticmethod
    def by_label(seconds: Mapping[str, float], queues: Collection[str]) -> dict[str, float]:
        """Longest wait per label; 0 for queues without waiting jobs."""
        longest = dict.fromkeys(queues, 0.0)
        for queue, waited in seconds.items():
            label = metrics.queue_label(queue)
            longest[label] = max(waited, longest.get(label, 0.0))
        return longest

    def _measure_all(self, queues: Collection[str]) -> dict[str, float]:
        longest = self._measure_delivered(queues)
        connection = self._enqueuer.connection
        rows = connection.execute(DUE_RETRIES).fetchall()
        rows += lanes.oldest_due_seconds(connection, self._enqueuer.places).items()
        for queue, seconds in rows:
            longest[queue] = max(seconds, longest.get(queue, 0.0))
        return longest

    def _measure_delivered(self, queues: Collection[str]) -> dict[str, float]:
        lower_bounds = self._redelivery.lower_bounds
        if len(lower_bounds) > _MOST_QUEUES:
            lower_bounds = {queue: lower_bounds[queue] for queue in queues if queue in lower_bounds}
        rows = self._enqueuer.connection.execute(
            _DELIVERED, (list(lower_bounds), list(lower_bounds.values()))
        )
        now, seen, longest = monotonic(), self._seen, dict[str, float]()
        self._seen = {}
        for queue, delivery, claimed_before, seconds in rows:
            longest[queue] = max(0.0, seconds)
            if claimed_before:
                known = seen.get(queue)
                self._seen[queue] = first = known if known and known[0] == delivery else (delivery, now)
                longest[queue] = min(longest[queue], now - first[1])
        return longest
