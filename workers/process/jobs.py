"""A job in the inbox of a worker process: already claimed, or to be claimed right before it runs."""

from __future__ import annotations

from drain.tables.claims import Claim
from drain.wire import PoppedId
from workers.context.current import Attempt
from workers.lease.interruption import Watcher


class ClaimedJob(Attempt):
    """The attempt at a job that this process has claimed.

    Attributes:
        rq_id: RQ's id of the delivery.
        slot: Number of its slot in the journal.
        waits_since: Time at which it entered the inbox, by the monotonic clock.
        took: Seconds that it ran, once it has ended.
    """

    __slots__ = ("rq_id", "slot", "took", "waits_since")

    def __init__(
        self,
        claim: Claim,
        asked_at: float,
        watcher: Watcher,
        database_url: str,
        *,
        rq_id: str,
        slot: int,
        waits_since: float,
    ) -> None:
        super().__init__(claim, asked_at, watcher, database_url)
        self.rq_id = rq_id
        self.slot = slot
        self.waits_since = waits_since
        self.took = 0.0


class PendingJob:
    """A job that is claimed only right before it runs: one that must run alone, or a plain RQ job.

    Attributes:
        popped: Its delivery, as it was in RQ's list.
        waits_since: Time at which it entered the inbox, by the monotonic clock.
        attempt: Its attempt, once it runs.
    """

    __slots__ = ("attempt", "popped", "waits_since")

    def __init__(self, popped: PoppedId, waits_since: float) -> None:
        self.attempt: Attempt | None = None
        self.popped = popped
        self.waits_since = waits_since


Item = ClaimedJob | PendingJob
