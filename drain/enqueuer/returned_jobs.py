"""Jobs with a unique key that wait again, after an attempt or a lost lease, while another one of the key waits."""

from __future__ import annotations

from psycopg import errors

from drain import metrics
from drain.admission import uniqueness
from drain.enqueuer.chores import Chore


class ReturnedJobs(Chore):
    """Lets one job in flight stand for each unique key; counts the jobs that gave way."""

    pause_seconds = 1.0
    in_use = (errors.LockNotAvailable, errors.QueryCanceled)
    refused_text = "several jobs in flight may wait under one unique key"
    refused_event = "not_unique"

    def _work(self) -> int:
        superseded = uniqueness.settle_returned(self._connection)
        metrics.SUPERSEDED.inc(superseded)
        return superseded
