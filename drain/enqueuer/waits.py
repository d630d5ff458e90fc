"""Waiting time of the oldest job in each queue, for the metrics; the leader measures it every few seconds.

A job waits in one of three places, and the scan of each is bounded, however many rows there are:

    staged     the first hundred due rows of each priority of a lane, behind the cursors of the enqueuer
    delivered  the lowest unclaimed delivery number of each queue: one index look-up, from redelivery's lower bound on
    retrying   the earliest next_run_at of each queue, if its time has come

A delivered row that has been claimed before does not say since when it waits: it has waited since it was renumbered.
The leader remembers when it first saw the new number.
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

# Upper bound of the queues of one look, but for those that are named.
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
    """Measures on the leader's connection, for as long as it leads.

    Args:
        enqueuer: Its cursors are lower bounds of the places of staged rows.
        redelivery: It has lower bounds of the numbers of unclaimed deliveries.

    Attributes:
        refused: True if the role may not read the tables; then nothing is measured any more.
    """

    def __init__(self, enqueuer: Enqueuer, redelivery: Redelivery) -> None:
        self.refused = False
        self._enqueuer = enqueuer
        self._redelivery = redelivery
        # By queue: number of an unclaimed delivery whose job was claimed before, and when the number was first seen.
        self._seen: dict[str, tuple[int, float]] = {}

    def measure(self, queues: Collection[str] = ()) -> dict[str, float]:
        """Measure for how many seconds the oldest job of each queue has waited; queues without one are left out.

        Empty, with one warning, if the role may not read the tables.

        Args:
            queues: Queues whose delivered jobs are looked at where there are more than a thousand queues.

        Raises:
            psycopg.OperationalError: The database.
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
        """Longest wait under each label of the metric, 0 for those of these queues in which no job waits."""
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
