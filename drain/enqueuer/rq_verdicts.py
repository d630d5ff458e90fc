"""Verdicts of RQ's own workers on lost deliveries: such jobs are dead.

stopped      a user ended the job by RQ's stop-job command
unreadable   the worker's serializer cannot read our calls; if all workers are alike, none can
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

# Consecutive deliveries: in a mixed fleet, one of ten likely reached an able worker.
MOST_UNREADABLE = 10
# Beyond this, the oldest count restarts.
_MOST_COUNTED = 100_000

# Between reports of one queue.
_REPORT_SECONDS = 600.0

STOPPED = "stopped by RQ's stop-job command"
UNREADABLE = (
    f"{MOST_UNREADABLE} deliveries failed unread: the serializer of an `rq worker` on this queue cannot read them; "
    "start it without --serializer (RQ's default, pickle), or use `drain work`"
)


@dataclass(slots=True)
class RQVerdicts:
    """Verdicts on jobs about to be redelivered."""

    connection: Connection
    redis: Producer
    # Consecutive unreadable deliveries by job; each leader starts at 0.
    _unread: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _reported_at: dict[str, float] = field(default_factory=dict)

    def bury(self, jobs: Sequence[Redelivered]) -> Collection[int]:
        """Bury, in the open transaction that locked them, those that RQ will not run again; return their ids."""
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
            # Roles granted by an older version: redeliver, as that version did.
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
