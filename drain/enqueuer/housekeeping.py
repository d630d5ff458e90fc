"""Small chores of the leader: partitions, unique keys of jobs that wait again, and what is no longer needed."""

from __future__ import annotations

from collections.abc import Set

from psycopg import errors

from drain import metrics
from drain.admission import uniqueness
from drain.enqueuer.chores import Chore
from drain.enqueuer.enqueuer import Enqueuer
from drain.tables import finished, idempotency, staged

# Smallest partition that is truncated: some seven thousand rows. To step over seven thousand dead rows takes 0.7 ms,
# so a database that stages less has no need of truncation.
_LARGER_THAN_BYTES = 1024 * 1024
# Number of days after today for which partitions are made.
_DAYS_AHEAD = 3
# Upper bound of the idempotency keys of one statement.
_MOST_KEYS = 5000


class ReturnedJobs(Chore):
    """Lets one job in flight stand for each unique key, after an attempt or a lost lease; counts jobs that gave way."""

    pause_seconds = 1.0
    in_use = (errors.LockNotAvailable, errors.QueryCanceled)
    refused_text = "several jobs in flight may wait under one unique key"
    refused_event = "not_unique"

    def _work(self) -> int:
        superseded = uniqueness.settle_returned(self._connection)
        metrics.SUPERSEDED.inc(superseded)
        return superseded


class PartitionTruncator(Chore):
    """Truncates drained partitions, whose rows vacuum may not remove while a session holds an old snapshot.

    Ready rows are spread over partitions that are filled in turn; see `schema.sql`. An obstacle (a job that has not
    been drained, an open transaction that has staged, a dump that has locked the table) puts the truncation off until
    the partition's next turn is over. A refusal (no rights, a trigger or a foreign key of the application) stays as it
    is, so the chore gives up. Counts partitions.
    """

    pause_seconds = 1.0
    refused_text = "staged_jobs is left to vacuum"
    refused_event = "not_truncated"
    gives_up = True

    def _work(self) -> int:
        truncated = staged.truncate_idle(self._connection, _LARGER_THAN_BYTES)
        metrics.TRUNCATED.inc(truncated)
        return truncated


class DailyPartitions(Chore):
    """Makes the partitions of `finished_jobs` for the next days; counts days.

    A job that is finished on a day without a partition is not refused: its row goes to `finished_jobs_other`, and moves
    to the partition when that is made.
    """

    pause_seconds = 60.0
    # A timeout: very many rows would have to move. `drain archive` has the time for that.
    in_use = (errors.QueryCanceled,)
    refused_text = "no partition for the next days"
    refused_event = "no_days"

    def _work(self) -> int:
        return finished.make_days(self._connection, _DAYS_AHEAD)


class ExpiredKeys(Chore):
    """Deletes idempotency keys whose time is over; counts keys."""

    pause_seconds = 60.0
    goes_on = True
    in_use = (errors.LockNotAvailable, errors.QueryCanceled)
    refused_text = "expired idempotency keys are kept"
    refused_event = "keys_not_deleted"

    def _work(self) -> int:
        return idempotency.delete_expired(self._connection, _MOST_KEYS)


class PastQueues(Chore):
    """Lets Redis forget queues that have been idle at two looks in a row; counts names.

    The tables are not asked: a waiting row need not keep the name, since its push enters the queue again, in the same
    step that writes the id.

    Args:
        enqueuer: Knows which queues were in use lately, and is connected to Redis.
    """

    pause_seconds = 600.0

    def __init__(self, enqueuer: Enqueuer) -> None:
        super().__init__(enqueuer.connection)
        self._enqueuer = enqueuer
        self._idle_before: Set[str] = frozenset()

    def _work(self) -> int:
        redis = self._enqueuer.redis
        idle = redis.queues_fed() - self._enqueuer.deliveries.queues
        gone, self._idle_before = idle & self._idle_before, idle
        return redis.forget_queues(gone)
