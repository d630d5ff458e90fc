"""Drops old days of `finished_jobs`, for `drain run` and `drain prune`.

Each day is a transaction with a lock timeout of 0.1 s, so no session waits longer behind it. Dead jobs and
`stale_finishes` stay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import monotonic, sleep

from psycopg import errors

from drain import metrics
from drain.database.postgres import Connection
from drain.enqueuer.chores import Chore
from drain.errors import DrainError
from drain.formatting import count
from drain.tables import finished
from drain.tables.finished import Dropped

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.5


class Retention(Chore):
    """Drops jobs older than `keep_days` past UTC days (at least 1), a day per call."""

    pause_seconds = 60.0
    goes_on = True
    # A report or dump uses the table.
    in_use = (errors.LockNotAvailable, errors.QueryCanceled, errors.DeadlockDetected)
    refused_text = "old days of finished jobs are not dropped"
    refused_event = "days_not_dropped"

    def __init__(self, connection: Connection, keep_days: int) -> None:
        super().__init__(connection)
        self._keep_days = keep_days

    def _work(self) -> int:
        dropped = finished.drop_old_day(self._connection, self._keep_days)
        if dropped is None:
            return 0
        metrics.DROPPED_DAYS.inc()
        log.info(
            "dropped finished jobs of %s: %s; --keep-days=%d",
            dropped.date,
            count(dropped.jobs, "job"),
            self._keep_days,
            extra={"event": "day_dropped", "day": str(dropped.date), "jobs": dropped.jobs},
        )
        return 1


def prune(connection: Connection, keep_days: int, patience: float = PATIENCE_SECONDS) -> Iterator[Dropped]:
    """Drop and yield all old days, oldest first.

    Args:
        connection: The owner's, in autocommit mode, at read committed.
        keep_days: Past UTC days to keep; at least 1.
        patience: Seconds to wait for sessions that use the table.

    Raises:
        DrainError: Another `drain archive` or `drain prune` runs, or the table stays in use.
    """
    if not finished.try_to_archive(connection):
        raise DrainError(
            "a `drain archive` or another `drain prune` is running on this database; nothing was dropped"
        )
    deadline = monotonic() + patience
    while True:
        try:
            dropped = finished.drop_old_day(connection, keep_days)
        except errors.LockNotAvailable as error:
            if monotonic() > deadline:
                raise DrainError(
                    f"{finished.why_kept(error)}: the other days were not dropped; run this again"
                ) from None
            sleep(_PAUSE_SECONDS)
            continue
        if dropped is None:
            return
        yield dropped
