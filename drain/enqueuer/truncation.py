"""Gives back the space of drained rows that vacuum may not remove, because some session holds an old snapshot.

Ready rows are spread over partitions that take turns; see `schema.sql`. The leader looks about once a second
whether the one whose turn is over has been emptied, and truncates it. What keeps it from that (a job that
has not been drained, a transaction that has staged and stays open, a dump that has locked the table) only
puts it off until the partition's next turn is over.
"""

from __future__ import annotations

import logging
from time import monotonic

import psycopg

from drain import metrics
from drain.database.postgres import Connection
from drain.enqueuer.pacer import Pace
from drain.tables import staged

log = logging.getLogger(__name__)

# Some seven thousand rows. Whoever stages less is not truncated again and again: stepping over so many dead ones
# takes 0.7 ms.
_LARGER_THAN_BYTES = 1024 * 1024
_SECONDS = 1.0


class PartitionTruncator:
    """Truncates on the leader's connection.

    Args:
        connection: In autocommit mode, at read committed.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pace = Pace(_SECONDS)
        self._may = True

    def run_once(self) -> int:
        """Look once, unless the last look was too recent; returns how many partitions were truncated.

        Raises:
            psycopg.OperationalError: The database.
        """
        if not self._may or not self._pace.is_due():
            return 0
        began = monotonic()
        truncated = self._truncate()
        # To look whether all of millions of rows are dead takes its time, and may be in vain.
        self._pace.took(0.0 if truncated else monotonic() - began)
        metrics.TRUNCATED.inc(truncated)
        return truncated

    def _truncate(self) -> int:
        try:
            return staged.truncate_idle(self._connection, _LARGER_THAN_BYTES)
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            # No rights, or somebody's trigger or foreign key: that will be so again, and the drain goes on.
            self._may = False
            log.warning("staged_jobs is left to vacuum: %s", error, extra={"event": "not_truncated"})
            return 0
