"""New numbers for redelivered jobs, and their push, in slices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from psycopg import IsolationLevel

from drain import metrics, wire
from drain.database import postgres
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.rq_verdicts import RQVerdicts
from drain.failpoints import FailurePoint, failpoint
from drain.formatting import count
from drain.tables.redeliveries import Redelivered
from drain.wire import ReplacedDelivery

log = logging.getLogger(__name__)

# Jobs per transaction.
_SLICE = 1000

Renumber = Callable[[int, int], list[Redelivered]]


class Renumbering:
    """Renumbers and pushes, after the enqueuer's lower numbers."""

    def __init__(self, enqueuer: Enqueuer, alive: Callable[[], None]) -> None:
        self._enqueuer = enqueuer
        self._connection = enqueuer.connection
        self._redis = enqueuer.redis
        self._deliveries = enqueuer.deliveries
        self._alive = alive
        self._rq_verdicts = RQVerdicts(enqueuer.connection, enqueuer.redis)

    def push_again(self, reason: str, renumber: Renumber) -> int:
        """Renumber and push until a slice is not full; return how many jobs Redis accepted.

        Args:
            renumber: Assigns numbers above its first argument, to at most as many jobs as its second, in the open
                transaction.

        Raises:
            UnavailableError: Redis failed; renumbered jobs not pushed are above the watermark.
        """
        total = 0
        while True:
            jobs, buried = self._renumber(renumber)
            if len(jobs) > len(buried):
                pushed = self._push([job for job in jobs if job.id not in buried])
                total += pushed
                metrics.REDELIVERED.labels(reason).inc(pushed)
                if pushed:
                    event = {"event": "redelivered"}
                    log.info("pushed %s again: %s", count(pushed, "job"), reason, extra=event)
            self._alive()
            if len(jobs) < _SLICE:
                return total

    def _renumber(self, renumber: Renumber) -> tuple[list[Redelivered], Collection[int]]:
        """Return renumbered jobs, and ids of those dead by RQ's verdict."""
        buried: Collection[int] = ()
        # Earlier batches have lower numbers and must arrive first.
        self._enqueuer.flush()
        # One locking statement, to see workers' latest writes.
        with postgres.transaction(self._connection, IsolationLevel.READ_COMMITTED):
            jobs = renumber(self._deliveries.last_delivery, _SLICE)
            if jobs:
                buried = self._rq_verdicts.bury(jobs)
                self._deliveries.record(jobs[-1].delivery)
        if jobs:
            self._deliveries.committed(jobs[-1].delivery)
        return jobs, buried

    def _push(self, jobs: Sequence[Redelivered]) -> int:
        redis = self._redis
        failpoint(FailurePoint.RENUMBERED)
        namespace, installation = redis.namespace, redis.installation
        earlier = [wire.tracked_id(namespace, job.id, job.previous_delivery) for job in jobs]
        later = [
            wire.tracked(
                namespace,
                job.id,
                job.queue,
                job.job_name,
                job.timeout_seconds,
                job.delivery,
                installation,
            )
            for job in jobs
        ]
        # Before a worker can finish the later delivery.
        redis.move_dependents([(gone, job.rq_id) for gone, job in zip(earlier, later, strict=True)])
        refused = redis.push(later)
        failpoint(FailurePoint.PUSHED_AGAIN)
        redis.forget([ReplacedDelivery(gone, job.queue) for gone, job in zip(earlier, jobs, strict=True)])
        failpoint(FailurePoint.FORGOTTEN)
        self._deliveries.pushed(jobs[-1].delivery, (job.queue for job in jobs))
        self._enqueuer.noticed_lengths({job.queue for job in jobs})
        return len(jobs) - refused.total()
