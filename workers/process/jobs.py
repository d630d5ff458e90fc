"""A job in the inbox of a worker process: already claimed, or to be claimed right before it runs."""

from __future__ import annotations

from time import monotonic, time

from drain.jobs.options import GROUPED
from drain.tables.claims import Claim
from drain.wire import PoppedId, is_thin
from drain.workers.context.current import Attempt
from drain.workers.execution.outcome import Outcome
from drain.workers.lease.interruption import Watcher

# Time after which RQ's tools are shown a running job by its name.
SHOWN_AFTER_SECONDS = 1.0


class ClaimedJob(Attempt):
    """The attempt at a job that this process has claimed.

    Attributes:
        rq_id: RQ's id of the delivery.
        asked_at: Time at which its claim was asked for, right after its id was popped, by the monotonic clock.
        slot: Number of its slot in the journal.
        waits_since: Time at which it entered the inbox, by the monotonic clock.
        began_at: Time at which it began, by the monotonic clock; None before.
        took: Seconds that it ran, once it has ended.
    """

    __slots__ = ("asked_at", "began_at", "rq_id", "slot", "took", "waits_since")

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
        # The finisher waits. The process of an isolated job records its outcome by itself.
        self.groups_commit = self.options.commit == GROUPED and not self.options.isolated
        self.rq_id = rq_id
        self.slot = slot
        self.waits_since = waits_since
        self.asked_at = asked_at
        self.began_at: float | None = None
        self.took = 0.0

    @property
    def has_hash(self) -> bool:
        """True if Redis may hold a hash of the delivery, once the job has ended."""
        return self.took >= SHOWN_AFTER_SECONDS or not is_thin(self.rq_id)

    def hops(self) -> dict[str, float]:
        """Return when the job was popped, and when it began and ended if it did, in seconds since 1970."""
        since = time() - monotonic()
        popped = {"popped": since + self.asked_at}
        if self.began_at is None:
            return popped
        began = since + self.began_at
        return popped | {"begun": began, "ended": began + self.took}


class PendingJob:
    """A job that is claimed only right before it runs: one that must run alone, or a plain RQ job.

    Attributes:
        popped: Its delivery, as it was in RQ's list.
        waits_since: Time at which it entered the inbox, by the monotonic clock.
        attempt: Its attempt, once it runs.
        outcome: Outcome of its attempt, once it has run.
        took: Seconds that its attempt ran.
    """

    __slots__ = ("attempt", "outcome", "popped", "took", "waits_since")

    def __init__(self, popped: PoppedId, waits_since: float) -> None:
        self.attempt: Attempt | None = None
        self.outcome: Outcome | None = None
        self.took = 0.0
        self.popped = popped
        self.waits_since = waits_since


Item = ClaimedJob | PendingJob
