"""The lease of one claim, as far as this process knows."""

from __future__ import annotations

from time import monotonic

from drain.jobs.options import JobOptions
from drain.tables.claims import Claim

NEVER = float("inf")


class Lease:
    """Lease of one claim; times by `monotonic()` unless noted.

    Args:
        asked_at: Request of the claim: the lease began no earlier.

    Attributes:
        beat_at: Next extension; NEVER once lost.
        extended_at: Request of the last extension, or of the claim.
        expires_at: Known end by the database's clock.
        let_go_at: When a job that runs too long is no longer extended.
        ending: The outcome is being recorded, or the claim given up: no extension, and a refusal is not a loss.
        lost: Claimed elsewhere, or cancelled.
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
        """Return the known time; 0 once lost."""
        return 0.0 if self.lost else max(0.0, self.extended_at + self.claim.lease_seconds - monotonic())
