"""Truncation of drained partitions, whose rows vacuum may not remove while some session holds an old snapshot.

Ready rows are spread over partitions that are filled in turn; see `schema.sql`. The leader looks about once a second
whether the partition whose turn is over has been emptied, and truncates it. An obstacle (a job that has not been
drained, a transaction that has staged and stays open, a dump that has locked the table) only puts that off until
the partition's next turn is over.
"""

from __future__ import annotations

from drain import metrics
from drain.enqueuer.chores import Chore
from drain.tables import staged

# Smallest partition that is truncated: some seven thousand rows. To step over seven thousand dead rows takes 0.7 ms,
# so a database that stages less has no need of truncation.
_LARGER_THAN_BYTES = 1024 * 1024


class PartitionTruncator(Chore):
    """Truncates partitions of staged rows; counts partitions.

    A refusal (no rights, a trigger or a foreign key of the application) stays as it is, so the chore gives up.
    """

    pause_seconds = 1.0
    refused_text = "staged_jobs is left to vacuum"
    refused_event = "not_truncated"
    gives_up = True

    def _work(self) -> int:
        truncated = staged.truncate_idle(self._connection, _LARGER_THAN_BYTES)
        metrics.TRUNCATED.inc(truncated)
        return truncated
