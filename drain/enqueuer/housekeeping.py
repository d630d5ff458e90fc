"""Small chores: partitions, unique keys, expired keys, rows of past jobs, old events, idle queues."""

from __future__ import annotations

from collections.abc import Set
from typing import ClassVar

from psycopg import errors

from drain import metrics
from drain.admission import uniqueness
from drain.database.postgres import Connection
from drain.enqueuer.chores import Chore
from drain.enqueuer.enqueuer import Enqueuer
from drain.tables import finished, gone, idempotency, staged, waits

# About 7,000 rows: stepping over as many dead ones takes 0.7 ms.
_LARGER_THAN_BYTES = 1024 * 1024
_DAYS_AHEAD = 3
_MOST_KEYS = 5000
# A look takes 40 ms, since it asks each day of finished jobs.
_MOST_JOBS = 250


class ReturnedJobs(Chore):
    """Settles unique keys shared in flight; counts jobs that gave way."""

    pause_seconds = 1.0
    in_use = (errors.LockNotAvailable, errors.QueryCanceled)
    refused_text = "several jobs in flight may share one unique key"
    refused_event = "not_unique"

    def _work(self) -> int:
        superseded = uniqueness.settle_returned(self._connection)
        metrics.SUPERSEDED.inc(superseded)
        return superseded


class PartitionTruncator(Chore):
    """Truncates drained partitions, whose rows vacuum must keep while a session holds an old snapshot; counts them.

    Ready rows fill partitions in turn; see `schema.sql`. An undrained job, an open staging transaction or a dump
    postpones truncation by a turn. A refusal (rights, triggers or foreign keys) is final.
    """

    pause_seconds = 1.0
    refused_text = "drained partitions of staged_jobs are not truncated"
    refused_event = "not_truncated"
    gives_up = True

    def _work(self) -> int:
        truncated = staged.truncate_idle(self._connection, _LARGER_THAN_BYTES)
        metrics.TRUNCATED.inc(truncated)
        return truncated


class DailyPartitions(Chore):
    """Creates `finished_jobs` partitions ahead; counts days.

    Without one, rows go to `finished_jobs_other`, and move once it exists.
    """

    pause_seconds = 60.0
    # Too many rows to move in time; `drain archive` has the time.
    in_use = (errors.QueryCanceled,)
    refused_text = "partitions for the next days could not be created"
    refused_event = "no_days"

    def _work(self) -> int:
        return finished.make_days(self._connection, _DAYS_AHEAD)


class ExpiredKeys(Chore):
    """Deletes expired idempotency keys; counts keys."""

    pause_seconds = 60.0
    goes_on = True
    in_use = (errors.LockNotAvailable, errors.QueryCanceled)
    refused_text = "expired idempotency keys are not deleted"
    refused_event = "keys_not_deleted"

    def _work(self) -> int:
        return idempotency.delete_expired(self._connection, _MOST_KEYS)


class PastRows(Chore):
    """Deletes rows of deleted jobs; counts rows.

    Each call looks at the lowest ids, whose days are dropped first, and at further ones in turn.
    """

    pause_seconds = 60.0
    goes_on = True
    in_use = (errors.LockNotAvailable, errors.QueryCanceled)
    statement: ClassVar[str]

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._looked_up_to = 0

    def _work(self) -> int:
        _, first = gone.delete(self._connection, self.statement, 0, _MOST_JOBS)
        self._looked_up_to, rest = gone.delete(
            self._connection, self.statement, self._looked_up_to, _MOST_JOBS
        )
        return first + rest


class PastSteps(PastRows):
    """Deletes the steps of deleted jobs."""

    statement = gone.DELETE_STEPS
    refused_text = "steps of deleted jobs are not deleted"
    refused_event = "steps_not_deleted"


class PastEdges(PastRows):
    """Deletes the edges of deleted jobs."""

    statement = gone.DELETE_EDGES
    refused_text = "edges of deleted jobs are not deleted"
    refused_event = "edges_not_deleted"


class PastFlows(PastRows):
    """Deletes flows whose end is deleted."""

    statement = gone.DELETE_FLOWS
    refused_text = "flows without an end are not deleted"
    refused_event = "flows_not_deleted"


class PastWaits(PastRows):
    """Deletes the waits of finished and deleted jobs."""

    statement = gone.DELETE_WAITS
    refused_text = "waits of finished jobs are not deleted"
    refused_event = "waits_not_deleted"


class PastEvents(Chore):
    """Deletes old events; counts them."""

    pause_seconds = 60.0
    goes_on = True
    in_use = (errors.LockNotAvailable, errors.QueryCanceled)
    refused_text = "old events are not deleted"
    refused_event = "events_not_deleted"

    def _work(self) -> int:
        return waits.delete_old_events(self._connection, _MOST_KEYS)


class PastQueues(Chore):
    """Removes queues from Redis that were idle twice in a row; a push adds them again."""

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
