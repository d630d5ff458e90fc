"""Redelivery: pushes lost deliveries again under new numbers, once a second.

Each reason is an indexed scan of `inflight_jobs`:

    never pushed   above the watermark: a leader died in between
    lost           unclaimed, though Redis lost its data or serves later numbers
    lease          expired: the worker died or stalled
    retry          the next attempt is due; one at a time in a failing queue

First, `recall` holds back paused jobs, and those with expired leases under rules, which need a place and a token too.

A superfluous push is harmless: its claim is refused. After an expired lease on its last attempt, a job is pushed too,
and the claiming worker buries it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from time import monotonic

from drain import metrics
from drain.admission.held import HeldError
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.failing_queues import DueRetries, FailingQueues
from drain.enqueuer.lost_deliveries import LostDeliveries, Overdue
from drain.enqueuer.oldest_deliveries import OldestDeliveries
from drain.enqueuer.pacer import Pacer
from drain.enqueuer.recall import CallBack
from drain.enqueuer.renumbering import Renumbering
from drain.failpoints import FailurePoint, failpoint
from drain.tables import redeliveries, waiting
from drain.tables.pauses import Pauses
from drain.tables.redeliveries import Redelivered

log = logging.getLogger(__name__)

# Lease scans begin behind the last one, less some seconds for leases locked or uncommitted then. Whole scans step over
# dead entries under an old snapshot: measured, 0.1 s per million.
_LATE_SECONDS = 15.0
_WHOLE_SECONDS = 300.0
# From pop to claim: an RQ worker first forks and imports the application.
LOST_AFTER_SECONDS = 15.0


class Redelivery:
    """Redelivers for one leader, after the enqueuer's own pushes.

    Attributes:
        is_held_back: Due retries wait for a place, token, room or turn.
    """

    # One thing: the reasons for redelivery.

    def __init__(
        self,
        enqueuer: Enqueuer,
        lost_after_seconds: float = LOST_AFTER_SECONDS,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_held_back = False
        self.enqueuer = enqueuer
        self._connection = connection = enqueuer.connection
        self._redis = redis = enqueuer.redis
        self._deliveries = deliveries = enqueuer.deliveries
        self._all_leases = Pacer(_WHOLE_SECONDS)
        self._leases_seen_at = 0.0
        # Queues with deliveries, up to a number, from before a change of limits.
        self._outdated: set[str] = set()
        self._outdated_up_to = 0
        self._call_back = CallBack(connection, alive, enqueuer.admission.followed_pauses)
        self._failing_queues = FailingQueues(connection)
        self._oldest = OldestDeliveries(connection, deliveries)
        self._lost = LostDeliveries(
            redis, deliveries, self._oldest, lost_after_seconds=lost_after_seconds, alive=alive
        )
        self._renumbering = Renumbering(enqueuer, alive)

    @property
    def paused(self) -> Pauses:
        """Pauses at the last scan."""
        return self._call_back.paused

    @property
    def lower_bounds(self) -> Mapping[str, int]:
        """See `OldestDeliveries`."""
        return self._oldest.lower_bounds

    @property
    def failing_queues(self) -> Collection[str]:
        """Queues failing at the last scan."""
        return self._failing_queues.names

    def recover(self) -> int:
        """Push jobs left unpushed by the last leader, or all unclaimed ones if Redis lost its data; return how many.

        Call when a term begins, as also after a failed push.
        """
        self._call_back.run_once()
        # Before a batch delivers under the current rules.
        self.enqueuer.admission.follow()
        self._call_back_outdated()
        remembered = self._redis.remembers()
        if not remembered and self._deliveries.last_delivery:
            self.enqueuer.thin_queues.distrust()
        above, up_to = self._deliveries.pushed_up_to if remembered else 0, self._deliveries.last_delivery
        with self._deliveries.held_watermark():
            total = self._push_unclaimed("never pushed" if remembered else "lost", above=above, up_to=up_to)
        self.enqueuer.flush()
        failpoint(FailurePoint.RECOVERED)
        self._redis.mark()
        return total

    def _call_back_outdated(self) -> None:
        admission = self.enqueuer.admission
        if admission.outdated:
            self._outdated |= admission.outdated
            self._outdated_up_to = self._deliveries.last_delivery
        if self._outdated:
            self._outdated = self._call_back.outdated(self._outdated, self._outdated_up_to)
            admission.called_back()

    def run_once(self, retries_seconds: float = float("inf")) -> int:
        """Scan once for each reason; return how many jobs were pushed again.

        Args:
            retries_seconds: Then retries of more queues wait for the next round.

        Raises:
            UnavailableError: Redis failed; `recover` finds renumbered jobs not pushed.
            OwnedByAnotherError: Another database feeds the namespace now.
        """
        self._call_back.run_once()
        # A batch unaware of the pause must not move recalled jobs.
        self.enqueuer.admission.pause(self.paused)
        self._call_back_outdated()
        self.is_held_back = False
        return self._push_leases() + self._push_due_retries(retries_seconds) + self._push_lost()

    def _push_leases(self) -> int:
        began = monotonic()
        scans_all = self._all_leases.is_due()

        def within() -> float:
            if scans_all:
                return redeliveries.CENTURY_SECONDS
            return monotonic() - self._leases_seen_at + _LATE_SECONDS

        def renumber(last: int, limit: int) -> list[Redelivered]:
            jobs = redeliveries.redeliver_leases(
                self._connection, last, limit, within=within(), but=ruled, but_paused=bool(self.paused)
            )
            self._failing_queues.lost_worker({job.id for job in jobs})
            return jobs

        ruled = self.enqueuer.admission.ruled
        called_back = self._call_back.leases(within(), ruled)
        metrics.REDELIVERED.labels("lease").inc(len(called_back))
        self._failing_queues.lost_worker(set(called_back))
        total = self._renumbering.push_again("lease", renumber)
        self._leases_seen_at = began
        if scans_all:
            self._all_leases.ran_for(monotonic() - began)
        return total

    def _push_due_retries(self, seconds: float) -> int:
        total, began = 0, monotonic()
        for retries in self._failing_queues.due_retries():
            if self.paused.queue(retries.queue):
                continue
            if self.enqueuer.admission.holds_retries(retries.queue):
                self.is_held_back = True
                continue
            total += self._push_retries(retries)
            if monotonic() - began > seconds:
                self.is_held_back = True
                break
        return total

    def _push_retries(self, retries: DueRetries) -> int:
        admission, queue = self.enqueuer.admission, retries.queue

        def renumber(last: int, limit: int) -> list[Redelivered]:
            at_most = retries.limit or limit
            chosen = admission.redeliverable(queue, at_most)
            if isinstance(chosen, int):
                jobs = redeliveries.redeliver_retries(
                    self._connection, last, chosen, queue=queue, but_paused=bool(self.paused)
                )
                self.is_held_back |= len(jobs) == chosen < at_most
            else:
                jobs = redeliveries.redeliver_chosen(
                    self._connection, last, chosen, queue=queue, but_paused=bool(self.paused)
                )
                admission.redelivered(queue, {job.id: job.claims for job in jobs})
                self.is_held_back |= len(jobs) < at_most
            retries.put_on_trial(jobs)
            return jobs

        try:
            return self._renumbering.push_again("retry", renumber)
        except HeldError:
            return 0

    def _push_lost(self) -> int:
        if self._redis.remembers():
            return sum(self._push_overdue(overdue) for overdue in self._lost.find())
        log.warning(
            "Redis has lost its data, or a queue was taken over: pushing waiting jobs again",
            extra={"event": "redis_lost"},
        )
        self.enqueuer.thin_queues.distrust()
        total = self._push_unclaimed("lost", above=0, up_to=self._deliveries.last_delivery)
        failpoint(FailurePoint.RECOVERED)
        self._redis.mark()
        return total

    def _push_overdue(self, overdue: Overdue) -> int:
        queue, first, last = overdue
        if queue in self._outdated:
            # A new number would hide them from the call-back.
            return 0
        pushed = self._push_unclaimed_of(queue, "lost", above=first - 1, up_to=last)
        if pushed:
            # A stock worker missing from RQ's registry may have dropped them.
            self.enqueuer.thin_queues.distrust(queue)
        return pushed

    def _push_unclaimed(self, reason: str, *, above: int, up_to: int) -> int:
        found = (queue for queue, _ in waiting.oldest_deliveries(self._connection))
        queues = [queue for queue in found if queue not in self._outdated]
        return sum(self._push_unclaimed_of(queue, reason, above=above, up_to=up_to) for queue in queues)

    def _push_unclaimed_of(self, queue: str, reason: str, *, above: int, up_to: int) -> int:
        def renumber(last: int, limit: int) -> list[Redelivered]:
            nonlocal above
            jobs = redeliveries.redeliver_unclaimed(
                self._connection,
                last,
                limit,
                queue=queue,
                above=above,
                up_to=up_to,
                but_paused=bool(self.paused),
            )
            # The next slice must not step over this one's entries.
            above = max([above, *(job.previous_delivery for job in jobs)])
            return jobs

        return self._renumbering.push_again(reason, renumber)
