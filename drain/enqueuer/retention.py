"""Drops whole days of `finished_jobs` that are no longer kept: `drain run --keep-days`, `drain prune`.

Each day is a transaction of its own with a lock timeout of a tenth of a second: nobody waits behind it for longer.
Dead jobs stay until a person decides, and `stale_finishes` is left alone too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import monotonic, sleep

import psycopg
from psycopg import errors

from drain import metrics
from drain.database.postgres import Connection
from drain.enqueuer.pacer import Pace
from drain.errors import DrainError
from drain.tables import finished
from drain.tables.finished import Dropped
from drain.wording import count

log = logging.getLogger(__name__)

# Pause after a look that dropped nothing.
_SECONDS = 60.0
# How long `prune` waits for those who use the table.
PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.5


class Retention:
    """Drops on the leader's connection.

    Args:
        connection: In autocommit mode, at read committed.
        keep_days: Days before today, by UTC, that stay; at least 1.
    """

    def __init__(self, connection: Connection, keep_days: int) -> None:
        self._connection = connection
        self._keep_days = keep_days
        self._pace = Pace(_SECONDS)
        self._warned = False

    def run_once(self) -> int:
        """Drop one day, unless a recent look found none; returns how many days were dropped, 0 or 1.

        Raises:
            psycopg.OperationalError: The database.
        """
        if not self._pace.is_due():
            return 0
        dropped = self._drop()
        if dropped is None:
            self._pace.took(0.0)
            return 0
        metrics.DROPPED_DAYS.inc()
        log.info(
            "finished jobs of %s dropped: %s; --keep-days=%d",
            dropped.date,
            count(dropped.jobs, "job"),
            self._keep_days,
            extra={"event": "day_dropped", "day": str(dropped.date), "jobs": dropped.jobs},
        )
        return 1

    def _drop(self) -> Dropped | None:
        try:
            return finished.drop_old_day(self._connection, self._keep_days)
        except (errors.LockNotAvailable, errors.QueryCanceled, errors.DeadlockDetected):
            # In use by a report or a dump; the next look is in a minute.
            return None
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            # No rights, or a view on the partition: a person has to mend it, and the drain goes on.
            if not self._warned:
                log.warning(
                    "old days of finished jobs are not dropped: %s",
                    str(error).partition("\n")[0],
                    extra={"event": "days_not_dropped"},
                )
            self._warned = True
            return None


def prune(connection: Connection, keep_days: int, patience: float = PATIENCE_SECONDS) -> Iterator[Dropped]:
    """Drop all days that are no longer kept, the oldest first.

    Args:
        connection: Of the owner of the tables, in autocommit mode, at read committed.
        keep_days: Days before today, by UTC, that stay; at least 1.
        patience: For how many seconds to wait for those who use the table.

    Raises:
        DrainError: A `drain archive` is at work; or the table was in use for too long.
    """
    if not finished.try_to_archive(connection):
        raise DrainError(
            "a `drain archive` or another `drain prune` is at work on this database; nothing was dropped"
        )
    deadline = monotonic() + patience
    while True:
        try:
            dropped = finished.drop_old_day(connection, keep_days)
        except errors.LockNotAvailable:
            if monotonic() > deadline:
                raise DrainError(
                    "finished_jobs is in use by another transaction: the other days were not dropped; run this again"
                ) from None
            sleep(_PAUSE_SECONDS)
            continue
        if dropped is None:
            return
        yield dropped
