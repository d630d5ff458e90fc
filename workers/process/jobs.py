"""Jobs in the inbox."""

from __future__ import annotations

from time import monotonic, time

from drain.jobs.options import GROUPED, SHARED
from drain.tables.claims import Claim
from drain.wire import PoppedId, is_thin, notifies_end
from drain.workers.context.current import Attempt
from drain.workers.execution.outcome import Outcome
from drain.workers.lease.interruption import Watcher
from drain.workers.lease.lease import NEVER

# Until RQ's tools show the job's name.
SHOWN_AFTER_SECONDS = 1.0


class ClaimedJob(Attempt):
    """Attempt at a claimed job; times by `monotonic()`.

    Attributes:
        asked_at: Request of the claim, right after the pop.
        may_share: May take part in a shared transaction.
        slot: In the journal.
        waits_since: Entry into the inbox.
        took: Run time, once ended.
    """

    __slots__ = ("asked_at", "began_at", "may_share", "rq_id", "slot", "took", "waits_since")

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
        # An isolated job's process records its own outcome.
        self.groups_commit = self.options.commit == GROUPED and not self.options.isolated
        # An attempt that failed, or killed its process, would cost the others theirs.
        self.may_share = self.options.commit == SHARED and claim.attempts == 1
        self.rq_id = rq_id
        self.slot = slot
        self.waits_since = waits_since
        self.asked_at = asked_at
        self.began_at: float | None = None
        self.took = 0.0

    def run_alone(self) -> None:
        """Forget the run in a shared transaction that was rolled back."""
        self.reset()
        self.may_share = self.lease.ending = False
        # Given back, it would share again.
        self.waits_since = NEVER

    @property
    def has_hash(self) -> bool:
        """True if Redis may hold the delivery's hash."""
        return self.took >= SHOWN_AFTER_SECONDS or not is_thin(self.rq_id)

    @property
    def notifies_end(self) -> bool:
        """True if other jobs may wait for this one's place."""
        return notifies_end(self.rq_id)

    def hops(self) -> dict[str, float]:
        """Return when the job was popped, began and ended, in seconds since 1970."""
        since = time() - monotonic()
        popped = {"popped": since + self.asked_at}
        if self.began_at is None:
            return popped
        began = since + self.began_at
        return popped | {"begun": began, "ended": began + self.took}


class PendingJob:
    """Job claimed when it runs: one that must run alone, or a plain RQ job."""

    __slots__ = ("attempt", "outcome", "popped", "took", "waits_since")

    def __init__(self, popped: PoppedId, waits_since: float) -> None:
        self.attempt: Attempt | None = None
        self.outcome: Outcome | None = None
        self.took = 0.0
        self.popped = popped
        self.waits_since = waits_since


Item = ClaimedJob | PendingJob
