"""Extension of the leader."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import psycopg
from prometheus_client import Gauge

from drain.config import Settings
from drain.contrib.scaling import load
from drain.contrib.scaling.answers import Scale
from drain.contrib.scaling.wanted import wanted
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.read.waiting_by_cause import Waiting

WANTED = Gauge(
    "drain_wanted_workers",
    "Workers, running one job at a time, needed to finish the backlog and new arrivals within 30 s.",
    ["queue"],
)


class WantedWorkers:
    """Wanted workers of each queue; see `drain.enqueuer.extensions.LeaderExtension`."""

    path = "/scale/"

    def __init__(self, settings: Settings) -> None:
        self._scale = Scale(settings.database_url)
        self.answer = self._scale.answer

    def measure(
        self, connection: Connection, queues: Collection[str], waiting: Mapping[str, Waiting]
    ) -> None:
        """Measure these queues; DrainError if the role may not read the tables."""
        try:
            loads = load.read_all(connection, queues, waiting)
        except psycopg.errors.InsufficientPrivilege as error:
            reason = error.diag.message_primary
            raise DrainError(f"{reason}; run `drain roles --apply`") from error
        for queue, found in loads.items():
            WANTED.labels(queue).set(wanted(found).workers)
        self._scale.measured(loads.values())

    def clear(self) -> None:
        """Remove the gauges."""
        WANTED.clear()
