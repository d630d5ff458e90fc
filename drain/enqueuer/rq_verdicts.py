"""Verdicts of RQ's own workers on deliveries that did not come back: jobs with one of these are dead.

stopped      by RQ's stop-job command: a person wants the job to end, and not to run again
unreadable   the worker's serializer cannot read a call of ours; if all workers are configured alike, none can
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from time import monotonic

import psycopg

from drain import metrics
from drain.database.postgres import Connection
from drain.formatting import visible
from drain.tables import redeliveries
from drain.tables.redeliveries import Redelivered
from drain.wire import Producer, RQVerdict, tracked_id

log = logging.getLogger(__name__)

# Deliveries of one job that RQ's workers may fail to read, one after the other. In a fleet with some workers that can
# read them, one of these has very likely got one of ten.
MOST_UNREADABLE = 10
# Jobs for which that is counted; beyond that number the oldest count begins again.
_MOST_COUNTED = 100_000

# Time after which a queue whose deliveries are not read is reported again.
_REPORT_SECONDS = 600.0

STOPPED = "stopped by RQ's stop-job command"
UNREADABLE = (
    f"{MOST_UNREADABLE} deliveries failed unread: the serializer of an `rq worker` on this queue cannot read them; "
    "start it without --serializer (RQ's default, pickle), or use `drain work`"
)


@dataclass(slots=True)
class RQVerdicts:
    """Reads the verdicts on jobs that are about to be delivered again, and buries those that RQ will not run again.

    Attributes:
        connection: The leader's connection.
        redis: The producer for the Redis to which the deliveries were pushed.
    """

    connection: Connection
    redis: Producer
    # Number of consecutive unreadable deliveries by job id. The next leader counts from 0.
    _unread: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _reported_at: dict[str, float] = field(default_factory=dict)

    def bury(self, jobs: Sequence[Redelivered]) -> Collection[int]:
        """Bury those of these jobs that RQ will not run again, in the open transaction, which has locked them.

        Returns:
            Ids of the jobs that are dead now.

        Raises:
            UnavailableError: Redis.
        """
        redis = self.redis
        verdicts = redis.rq_verdicts(
            [tracked_id(redis.namespace, job.id, job.previous_delivery) for job in jobs]
        )
        stopped = [job for job, verdict in zip(jobs, verdicts, strict=True) if verdict is RQVerdict.STOPPED]
        unreadable = [
            job
            for job, verdict in zip(jobs, verdicts, strict=True)
            if self._count_unread(job, verdict) >= MOST_UNREADABLE
        ]
        return {*self._bury(stopped, "gave up", STOPPED), *self._bury(unreadable, "unreadable", UNREADABLE)}

    def _count_unread(self, job: Redelivered, verdict: RQVerdict) -> int:
        """Count a delivery; returns the number of consecutive unreadable ones of the job."""
        times = self._unread.pop(job.id, 0)
        if verdict is not RQVerdict.UNREADABLE:
            return 0
        self._report(job)
        self._unread[job.id] = times + 1
        if len(self._unread) > _MOST_COUNTED:
            self._unread.popitem(last=False)
        return times + 1

    def _report(self, job: Redelivered) -> None:
        now = monotonic()
        if now - self._reported_at.get(job.queue, -_REPORT_SECONDS) < _REPORT_SECONDS:
            return
        self._reported_at[job.queue] = now
        log.warning(
            "an `rq worker` on queue %s cannot read tracked jobs, such as %d: start it without --serializer",
            visible(job.queue),
            job.id,
            extra={"event": "unread_by_rq", "queue": job.queue},
        )

    def _bury(self, jobs: Sequence[Redelivered], reason: str, explanation: str) -> Collection[int]:
        ids = [job.id for job in jobs]
        if not ids:
            return ()
        connection = self.connection
        try:
            with connection.transaction():
                redeliveries.bury_redelivered(connection, ids, reason=reason, explanation=explanation)
        except psycopg.errors.InsufficientPrivilege as error:
            # An older version has granted these roles: the jobs are delivered again, as that version did.
            log.error(
                "%d jobs are not buried (%s): %s; run `drain roles` of this version again",
                len(ids),
                explanation,
                error.diag.message_primary,
                extra={"event": "not_buried"},
            )
            return ()
        metrics.DEAD.labels(reason).inc(len(ids))
        for job in jobs:
            self._unread.pop(job.id, None)
            log.error(
                "job %d (%s) is dead: %s",
                job.id,
                visible(job.job_name),
                explanation,
                extra={"event": "job_dead", "job_id": job.id},
            )
        return ids
