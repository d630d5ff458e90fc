"""Makes the partitions of `finished_jobs` in advance, one for each of the next days.

Whoever finishes a job on a day that has none is not refused: the row goes to `finished_jobs_other`, and moves over
when the day gets its partition.
"""

from __future__ import annotations

import logging

import psycopg
from psycopg import errors

from drain.database.postgres import Connection
from drain.enqueuer.pacer import Pace
from drain.tables import finished

log = logging.getLogger(__name__)

_AHEAD = 3
_SECONDS = 60.0


class DailyPartitions:
    """Makes them on the leader's connection.

    Args:
        connection: In autocommit mode, at read committed.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pace = Pace(_SECONDS)
        self._warned = False

    def run_once(self) -> int:
        """Look once, unless the last look was too recent; returns how many days got their partition.

        Raises:
            psycopg.OperationalError: The database.
        """
        if not self._pace.is_due():
            return 0
        self._pace.took(0.0)
        try:
            return finished.make_days(self._connection, _AHEAD)
        except errors.QueryCanceled:
            # Very many rows to move: whoever archives has the time for it.
            return 0
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            # Jobs are finished all the same.
            if not self._warned:
                log.warning("no partition for the next days: %s", error, extra={"event": "no_days"})
            self._warned = True
            return 0
