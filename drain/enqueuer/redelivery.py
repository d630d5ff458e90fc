"""Redelivery: pushes again what was delivered and did not come back. The leader runs it about once a second.

Each reason is a cheap indexed look at `inflight_jobs`:

    never pushed   delivered with a number above the watermark, by a leader that died in between
    lost           unclaimed, though Redis has lost its memory, or serves later numbers of the queue
    lease          the worker died or stalled: the lease is over, by the database's clock
    retry          the next attempt is due; one at a time while the queue fails again and again

Pushing too often is harmless: the claim of a job that is claimed or finished is refused. A job whose lease
ran out on its last attempt is pushed as well, and the worker that claims it gives it up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic

from psycopg import IsolationLevel

from drain import metrics, wire
from drain.database import postgres
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.oldest_deliveries import OldestDeliveries
from drain.enqueuer.pacer import Pace
from drain.enqueuer.rq_verdicts import RQVerdicts
from drain.failpoints import FailurePoint, failpoint
from drain.tables import leader_progress, redeliveries, waiting
from drain.tables.redeliveries import Redelivered
from drain.tables.waiting import Retrying
from drain.wire import ReplacedDelivery
from drain.wording import count

log = logging.getLogger(__name__)

# Jobs that are numbered anew in one transaction.
_LIMIT = 1000
# Leases are looked for behind those that the last look has seen, less so many seconds for what was locked or not
# yet committed; at times all of them, in case that took longer. While some session holds an old snapshot, the
# lease of each finished job is stepped over: measured, 0.1 s for a million.
_LATE_SECONDS = 15.0
_WHOLE_SECONDS = 300.0
# A list with too many ids of others at its head is read as a whole at most this often: measured in milliseconds for
# each 5000 ids, and only while the queue has an unclaimed delivery.
_WHOLE_LISTS_SECONDS = 60.0
# How long a popped job may take to be claimed. An RQ worker forks and imports the application first.
LOST_AFTER_SECONDS = 15.0


@dataclass(slots=True)
class Suspicion:
    """Deliveries of a queue, up to a number, that are in no list and not claimed yet."""

    up_to: int
    since: float


@dataclass(slots=True)
class Trial:
    """A failing queue.

    Attributes:
        since: From when on, by the database's clock.
        job_id: The retry that was let through and is under way; None if the next one may go.
    """

    since: datetime
    job_id: int | None = None


@dataclass(slots=True)
class Redelivery:
    """Redelivers for one leader; it shares the leader's connection, numbers and Redis.

    Attributes:
        enqueuer: Whose numbers to go on with.
        lost_after_seconds: How long a delivery may be in no list and not claimed.
        alive: Called after each slice, so that a long recovery is not taken for a standstill.
    """

    enqueuer: Enqueuer
    lost_after_seconds: float = LOST_AFTER_SECONDS
    alive: Callable[[], None] = lambda: None
    _suspicions: dict[str, Suspicion] = field(default_factory=dict)
    _holds_watermark: bool = False
    _trials: dict[str, Trial] = field(default_factory=dict)
    # Queues that another database feeds: nothing is pushed there until it does so no more.
    _foreign: set[str] = field(default_factory=set)
    _all_leases: Pace = field(default_factory=lambda: Pace(_WHOLE_SECONDS))
    _leases_seen_at: float = 0.0
    _whole_lists: Pace = field(default_factory=lambda: Pace(_WHOLE_LISTS_SECONDS))
    _oldest: OldestDeliveries = field(init=False)
    _rq_verdicts: RQVerdicts = field(init=False)

    def __post_init__(self) -> None:
        self._oldest = OldestDeliveries(self.enqueuer)
        self._rq_verdicts = RQVerdicts(self.enqueuer)
        # What another leader, or an earlier term of this one, knew of failing queues is nobody's knowledge now.
        metrics.FAILING.clear()

    @property
    def bounds(self) -> Mapping[str, int]:
        """A number of each queue that no unclaimed delivery of it is below, as of the last look."""
        return self._oldest.bounds

    def recover(self) -> int:
        """Push what the last leader moved and did not push, or all that waits if Redis has lost its memory.

        To be called when a leader begins, which it also does after a push has failed.

        Returns:
            How many jobs were pushed.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace.
        """
        remembered = self.enqueuer.redis.remembers()
        above, up_to = self.enqueuer.pushed_up_to if remembered else 0, self.enqueuer.last_delivery
        # The watermark stays below what is still to be pushed, should this leader die in between.
        self._holds_watermark = True
        total = self._unclaimed("never pushed" if remembered else "lost", above=above, up_to=up_to)
        self._holds_watermark = False
        self.enqueuer.pushed_up_to = self.enqueuer.last_delivery
        self.enqueuer.flush()
        failpoint(FailurePoint.RECOVERED)
        self.enqueuer.redis.mark()
        return total

    def run_once(self) -> int:
        """Look once for each reason; returns how many jobs were pushed again.

        Raises:
            UnavailableError: Redis; what was numbered anew and not pushed is found by `recover`.
            OwnedByAnotherError: Another database feeds the namespace by now.
            psycopg.OperationalError: The database.
        """
        return self._leases() + self._retries() + self._lost()

    def _leases(self) -> int:
        began = monotonic()
        looks_at_all = self._all_leases.is_due()

        def renumber(last: int) -> list[Redelivered]:
            newly_over = monotonic() - self._leases_seen_at + _LATE_SECONDS
            within = redeliveries.CENTURY_SECONDS if looks_at_all else newly_over
            jobs = redeliveries.redeliver_leases(self.enqueuer.connection, last, _LIMIT, within=within)
            lost = {job.id for job in jobs}
            for trial in self._trials.values():
                # It goes on trial no more: a job that takes its worker along each time must not block the rest.
                trial.job_id = None if trial.job_id in lost else trial.job_id
            return jobs

        total = self._repeat("lease", renumber)
        self._leases_seen_at = began
        if looks_at_all:
            self._all_leases.took(monotonic() - began)
        return total

    def _retries(self) -> int:
        """Push what is due; of a failing queue no more than one job at a time, until one of its jobs finishes."""
        total = 0
        retrying = waiting.retrying_queues(self.enqueuer.connection)
        for queue in retrying:
            trial = self._judge(queue)
            if queue.due and (trial is None or not self._is_under_way(trial)):
                total += self._retry(queue.queue, trial)
        for name in self._trials.keys() - {queue.queue for queue in retrying}:
            if not self._is_under_way(self._trials[name]):
                self._recovered(name)
        return total

    def _judge(self, queue: Retrying) -> Trial | None:
        """The trial of a failing queue; None for one that works."""
        trial = self._trials.get(queue.queue)
        if trial is None and queue.failing:
            trial = self._trials[queue.queue] = Trial(queue.now)
            metrics.FAILING.labels(queue.queue).set(1)
            log.warning(
                "queue %s fails again and again, its retries are let through one at a time",
                *(queue.queue,),
                extra={"event": "queue_failing", "queue": queue.queue},
            )
        elif trial is not None and queue.last_finish is not None and queue.last_finish > trial.since:
            self._recovered(queue.queue)
            trial = None
        return trial

    def _recovered(self, queue: str) -> None:
        del self._trials[queue]
        metrics.FAILING.labels(queue).set(0)
        log.info(
            "queue %s fails no more, its retries are let through as they come due",
            *(queue,),
            extra={"event": "queue_recovered", "queue": queue},
        )

    def _is_under_way(self, trial: Trial) -> bool:
        job_id = trial.job_id
        return job_id is not None and waiting.is_under_way(self.enqueuer.connection, job_id)

    def _retry(self, queue: str, trial: Trial | None) -> int:
        limit = _LIMIT if trial is None else 1

        def renumber(last: int) -> list[Redelivered]:
            jobs = redeliveries.redeliver_retries(self.enqueuer.connection, last, limit, queue=queue)
            if trial is not None and jobs:
                trial.job_id = jobs[0].id
            return jobs

        return self._repeat("retry", renumber)

    def _lost(self) -> int:
        redis = self.enqueuer.redis
        if not redis.remembers():
            log.warning(
                "Redis has lost its memory, or a queue was taken over: pushing again what waits",
                extra={"event": "redis_lost"},
            )
            total = self._unclaimed("lost", above=0, up_to=self.enqueuer.last_delivery)
            failpoint(FailurePoint.RECOVERED)
            redis.mark()
            return total
        return sum(
            self._unclaimed("lost", above=oldest - 1, up_to=up_to, queue=queue)
            for queue, oldest, up_to in self._overdue()
        )

    def _overdue(self) -> list[tuple[str, int, int]]:
        """Queues with deliveries that have been suspicious for too long, the oldest number, and up to which."""
        now = monotonic()
        enqueuer = self.enqueuer
        oldest = self._oldest.look()
        foreign = set(enqueuer.redis.fed_by_others(oldest.keys()))
        freed, self._foreign = self._foreign - foreign, foreign
        lowest = self._lowest([queue for queue in oldest if queue not in foreign])
        suspicions: dict[str, Suspicion] = {}
        overdue: list[tuple[str, int, int]] = []
        for queue, delivery in oldest.items():
            if queue in foreign:
                continue
            if queue in freed:
                # Whatever is at the head of the list: what was refused is in none.
                overdue.append((queue, delivery, enqueuer.last_delivery))
                continue
            known = self._suspicions.get(queue)
            listed = lowest[queue]
            gone_up_to = enqueuer.pushed_up_to if listed is None else listed - 1
            if known is not None and delivery <= known.up_to:
                # What is in no list does not come back into one under the same number.
                if now - known.since < self.lost_after_seconds:
                    suspicions[queue] = known
                else:
                    overdue.append((queue, delivery, known.up_to))
            elif delivery <= gone_up_to:
                suspicions[queue] = Suspicion(gone_up_to, now)
        self._suspicions = suspicions
        return overdue

    def _lowest(self, queues: Sequence[str]) -> dict[str, int | None]:
        """For each queue the lowest number in its list; None if it holds none of ours, 0 if nobody can tell."""
        redis, up_to = self.enqueuer.redis, self.enqueuer.last_delivery
        lowest = redis.lowest_deliveries(queues, up_to=up_to)
        # A key that is no list has no depth.
        unknown = [queue for queue in queues if lowest[queue] == 0 and redis.depth(queue)]
        if unknown and self._whole_lists.is_due():
            began = monotonic()
            lowest |= {queue: self._lowest_of_all(queue, up_to) for queue in unknown}
            self._whole_lists.took(monotonic() - began)
        return lowest

    def _lowest_of_all(self, queue: str, up_to: int) -> int | None:
        lowest: int | None = None
        for page in self.enqueuer.redis.listed(queue):
            numbers = [delivery for _, delivery in page if delivery <= up_to]
            lowest = min([*numbers, *([] if lowest is None else [lowest])], default=None)
            self.alive()
        return lowest

    def _unclaimed(self, reason: str, *, above: int, up_to: int, queue: str | None = None) -> int:
        connection = self.enqueuer.connection
        if queue is None:
            queues = [name for name, _ in waiting.oldest_deliveries(connection)]
            return sum(self._unclaimed(reason, above=above, up_to=up_to, queue=name) for name in queues)

        def renumber(last: int) -> list[Redelivered]:
            nonlocal above
            jobs = redeliveries.redeliver_unclaimed(
                connection, last, _LIMIT, queue=queue, above=above, up_to=up_to
            )
            # The next slice need not step over what this one leaves behind.
            above = max([above, *(job.previous_delivery for job in jobs)])
            return jobs

        return self._repeat(reason, renumber)

    def _repeat(self, reason: str, renumber: Callable[[int], list[Redelivered]]) -> int:
        """Number anew and push, a slice at a time, until a slice is not full."""
        total = 0
        while True:
            jobs, buried = self._renumber(renumber)
            if len(jobs) > len(buried):
                pushed = self._push([job for job in jobs if job.id not in buried], reason)
                total += pushed
                metrics.REDELIVERED.labels(reason).inc(pushed)
                if pushed:
                    event = {"event": "redelivered"}
                    log.info("pushed %s again: %s", count(pushed, "job"), reason, extra=event)
            self.alive()
            if len(jobs) < _LIMIT:
                return total

    def _renumber(
        self, renumber: Callable[[int], list[Redelivered]]
    ) -> tuple[list[Redelivered], Collection[int]]:
        """Number anew; the ids behind are those of jobs among them that are dead instead, by what RQ says of them."""
        buried: Collection[int] = ()
        enqueuer = self.enqueuer
        # What is in flight to Redis has lower numbers, and must be there before these.
        enqueuer.flush()
        # One statement, which locks what it takes: it should see what workers have just written.
        with postgres.transaction(enqueuer.connection, IsolationLevel.READ_COMMITTED):
            jobs = renumber(enqueuer.last_delivery)
            if jobs:
                buried = self._rq_verdicts.bury(jobs)
                leader_progress.record_progress(enqueuer.connection, jobs[-1].delivery, enqueuer.pushed_up_to)
        if jobs:
            enqueuer.last_delivery = jobs[-1].delivery
        return jobs, buried

    def _push(self, jobs: Sequence[Redelivered], reason: str) -> int:
        """Push the jobs under their new numbers; returns how many Redis took."""
        redis = self.enqueuer.redis
        self.enqueuer.queues.update(job.queue for job in jobs)
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
                # An `rq worker` of an older version finds the entry point by this name alone.
                by_entry=reason == "lost",
            )
            for job in jobs
        ]
        # Before anybody can finish the later one.
        redis.move_dependents([(gone, job.rq_id) for gone, job in zip(earlier, later, strict=True)])
        refused = redis.push(later)
        failpoint(FailurePoint.PUSHED_AGAIN)
        redis.forget([ReplacedDelivery(gone, job.queue) for gone, job in zip(earlier, jobs, strict=True)])
        failpoint(FailurePoint.FORGOTTEN)
        if not self._holds_watermark:
            self.enqueuer.pushed_up_to = jobs[-1].delivery
        return len(jobs) - refused.total()
