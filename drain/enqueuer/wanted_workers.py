"""Number of workers that each queue needs, for the metrics and for `/scale`; measured every few seconds."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import psycopg

from drain import metrics
from drain.database.postgres import Connection
from drain.scaling import load
from drain.scaling.answers import Scale
from drain.scaling.wanted import wanted
from drain.tables.causes import Waiting

log = logging.getLogger(__name__)


class WantedWorkers:
    """Measures in each term of a process as leader.

    Args:
        scale: Gets the load of each queue; None where nothing asks for it.
    """

    def __init__(self, scale: Scale | None) -> None:
        self._scale = scale
        self._refused = False

    def run_once(
        self, connection: Connection, queues: Collection[str], waiting: Mapping[str, Waiting]
    ) -> None:
        """Measure these queues; nothing, with one warning, if the role may not read the tables.

        Args:
            connection: The leader's.
            queues: Queues that have labels of their own.
            waiting: Numbers of waiting jobs, by queue and cause.

        Raises:
            psycopg.OperationalError: The database.
        """
        if self._refused:
            return
        try:
            loads = load.read_all(connection, queues, waiting)
        except psycopg.errors.InsufficientPrivilege as error:
            self._refused = True
            reason = error.diag.message_primary
            log.warning(
                "drain_wanted_workers is not measured (%s); run `drain roles --apply`",
                reason,
                extra={"event": "not_measured"},
            )
            return
        for queue, found in loads.items():
            metrics.WANTED.labels(queue).set(wanted(found).workers)
        if self._scale is not None:
            self._scale.measured(loads.values())
