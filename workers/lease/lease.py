"""The lease of one claim: how long the claim holds, as far as this process knows.

The lease is written by the claim, counted by the database's clock, and extended by the heartbeat, from the claim on
until the outcome is recorded. If an extension is refused, another worker has claimed the job: `lost` says so, and the
`interruption` of the attempt interrupts the job.
"""

from __future__ import annotations

from time import monotonic

from drain.jobs.options import JobOptions
from drain.tables.claims import Claim

NEVER = float("inf")


class Lease:
    """The lease of one claim.

    Args:
        claim: The claim.
        options: Of the job's registration.
        asked_at: When the claim was asked for, by the monotonic clock: the lease began no earlier.

    Attributes:
        claim: The claim.
        heartbeat_seconds: Pause between two extensions.
        beat_at: When the next extension is due, by the monotonic clock; NEVER once the lease is lost.
        extended_at: When the last extension was asked for, by the monotonic clock; the claim counts as one.
        expires_at: End of the lease by the database's clock, as far as is known.
        let_go_at: Time, by the monotonic clock, from which the lease of a job that runs for too long is not extended.
        ending: The outcome is being recorded, or the claim given back, or another process extends it: this process
            extends nothing, and a refused extension is no loss.
        lost: Another worker has claimed the job, or it was cancelled.
        cancelled: The job was cancelled.
    """

    __slots__ = (
        *("beat_at", "cancelled", "claim", "ending", "expires_at", "extended_at", "heartbeat_seconds"),
        *("let_go_at", "lost"),
    )

    def __init__(self, claim: Claim, options: JobOptions, asked_at: float) -> None:
        self.claim = claim
        self.heartbeat_seconds = min(options.heartbeat, claim.lease_seconds / 2)
        self.beat_at = asked_at + self.heartbeat_seconds
        self.extended_at = asked_at
        self.expires_at = claim.lease_expires_at
        self.let_go_at = NEVER
        self.ending = self.lost = self.cancelled = False

    def seconds_left(self) -> float:
        """Return how long the lease still holds, as far as is known, by the monotonic clock; 0 once it is lost."""
        return 0.0 if self.lost else max(0.0, self.extended_at + self.claim.lease_seconds - monotonic())
