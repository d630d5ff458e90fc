"""Partitions of `finished_jobs`, one a day, made some days in advance.

A job that is finished on a day without a partition is not refused: its row goes to `finished_jobs_other`, and moves
to the partition when that is made.
"""

from __future__ import annotations

from psycopg import errors

from drain.enqueuer.chores import Chore
from drain.tables import finished

# Number of days after today for which partitions are made.
_DAYS_AHEAD = 3


class DailyPartitions(Chore):
    """Makes the partitions of the next days; counts days."""

    pause_seconds = 60.0
    # A timeout: very many rows would have to move. `drain archive` has the time for that.
    in_use = (errors.QueryCanceled,)
    refused_text = "no partition for the next days"
    refused_event = "no_days"

    def _work(self) -> int:
        return finished.make_days(self._connection, _DAYS_AHEAD)
