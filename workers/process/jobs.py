"""A job in the inbox of a worker process: already claimed, or to be claimed right before it runs."""

from __future__ import annotations

from drain.jobs.registry import Job
from drain.tables.inflight import Claim
from drain.wire import Taken
from workers.lease.lease import Lease


class ClaimedJob:
    """A job that this process has claimed.

    Attributes:
        claim: Its claim.
        rq_id: RQ's id of the delivery.
        lease: Lease of the claim.
        slot: Number of its slot in the journal.
        job: Its registration; None if its name is not registered here.
        waits_since: Time at which it entered the inbox, by the monotonic clock.
        took: Seconds that it ran, once it has ended.
    """

    __slots__ = ("claim", "job", "lease", "rq_id", "slot", "took", "waits_since")

    def __init__(
        self,
        claim: Claim,
        rq_id: str,
        lease: Lease,
        slot: int,
        job: Job[..., object] | None,
        waits_since: float,
    ) -> None:
        self.claim = claim
        self.rq_id = rq_id
        self.lease = lease
        self.slot = slot
        self.job = job
        self.waits_since = waits_since
        self.took = 0.0


class PendingJob:
    """A job that is claimed only right before it runs: one that must run alone, or a plain RQ job.

    Attributes:
        taken: Its delivery, as it was in RQ's list.
        waits_since: Time at which it entered the inbox, by the monotonic clock.
        lease: Lease of its claim, once it runs.
    """

    __slots__ = ("lease", "taken", "waits_since")

    def __init__(self, taken: Taken, waits_since: float) -> None:
        self.lease: Lease | None = None
        self.taken = taken
        self.waits_since = waits_since


Item = ClaimedJob | PendingJob
