"""Numbers of one queue at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drain.read.causes import CAUSES
from drain.tables.pauses import Pause
from drain.tables.rules import RulesRow

# The leader normally needs at most a second.
OVERDUE_SECONDS = 5
RATE_SECONDS = STALLED_SECONDS = 60
# Not waiting for the leader.
_RULED = frozenset({"paused", "limited", "rate"})
_HELD = _RULED | {"list_full"}
# Reasons to look at a queue, in display order.
TROUBLES: Mapping[str, str] = {
    "paused": "Paused",
    "held": "Held",
    "failing": "Failing",
    "is_unattended": "No workers",
    "is_stalled": "Stalled",
}
# Numbers that are sums.
_PARTS = {
    "staged": ("ready", "scheduled", "blocked"),
    "overdue": ("ready",),
    "inflight": ("queued", "running", "retrying", "parked"),
    "waits": tuple(set(CAUSES) - {"scheduled", "blocked", "retrying", "parked"}),
}


@dataclass(slots=True)
class Queue:
    """Numbers of one queue; those from Redis may be None.

    Attributes:
        ready: Due staged jobs.
        scheduled: Staged jobs not yet due.
        blocked: Staged jobs that wait for others.
        queued: Delivered jobs, and those of dead workers.
        running: Claimed jobs with a live lease.
        retrying: Jobs awaiting their next attempt.
        parked: Jobs that wait for an event, or sleep.
        waiting: By cause (`causes.CAUSES`).
        estimates: Extrapolated states and causes.
        ready_seconds: Age of the oldest due staged job.
        queued_seconds: Wait of the oldest delivered job.
        retrying_seconds: Lateness of the oldest next attempt.
        per_second: Finished jobs, over the last minute.
        failing: Five failures since the last finish, with jobs awaiting a retry.
        paused: Pause of the whole queue.
        redis_depth: Ids in its Redis list, including foreign ones.
    """

    ready: int = 0
    scheduled: int = 0
    blocked: int = 0
    queued: int = 0
    running: int = 0
    retrying: int = 0
    parked: int = 0
    dead: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    estimates: set[str] = field(default_factory=set)
    ready_seconds: float = 0.0
    queued_seconds: float = 0.0
    oldest_queued_id: int | None = None
    retrying_seconds: float = 0.0
    per_second: float = 0.0
    failing: bool = False
    paused: Pause | None = None
    rules: RulesRow | None = None
    workers: int | None = None
    free: int | None = None
    redis_depth: int | None = None

    def is_estimate(self, name: str) -> bool:
        """Return True for an inexact number."""
        return any(part in self.estimates for part in _PARTS.get(name, (name,)))

    @property
    def staged(self) -> int:
        """Rows in `staged_jobs`."""
        return self.ready + self.scheduled + self.blocked

    @property
    def inflight(self) -> int:
        """Drained, unfinished jobs."""
        return self.queued + self.running + self.retrying + self.parked

    @property
    def jobs(self) -> int:
        """All unfinished jobs."""
        return self.staged + self.inflight + self.dead

    @property
    def waits(self) -> int:
        """Jobs delayed only by a rule, pause or missing worker."""
        return sum(self.waiting.get(cause, 0) for cause in _PARTS["waits"])

    @property
    def overdue(self) -> int:
        """Due jobs, if the leader is late."""
        return self.ready if self.lag_seconds > OVERDUE_SECONDS else 0

    @property
    def oldest_seconds(self) -> float:
        """Longest wait of a due job."""
        return max(self.ready_seconds, self.queued_seconds, self.retrying_seconds)

    @property
    def per_minute(self) -> int:
        """Jobs finished in the last minute."""
        return round(self.per_second * RATE_SECONDS)

    @property
    def lag_seconds(self) -> float:
        """Longest wait for the leader; 0 while a rule, pause or full list holds jobs."""
        return 0.0 if _HELD & self.waiting.keys() else self.ready_seconds

    @property
    def wait_seconds(self) -> float:
        """Longest wait for a worker, not held by a rule or pause."""
        return self.queued_seconds if _RULED & self.waiting.keys() else self.oldest_seconds

    @property
    def stalled_seconds(self) -> float:
        """Wait for a worker, if over a minute without a finish, else 0."""
        stalls = self.queued_seconds > STALLED_SECONDS and not self.per_second and self.paused is None
        return self.queued_seconds if stalls else 0.0

    @property
    def is_stalled(self) -> bool:
        """True if stalled despite workers, as far as known."""
        return self.stalled_seconds > 0 and not self.is_unattended

    @property
    def held(self) -> str | None:
        """Why the leader cannot apply its rules, if so."""
        return self.rules.error if self.rules else None

    @property
    def is_unattended(self) -> bool:
        """True if jobs wait without a worker."""
        return self.workers == 0 and self.waits + self.waiting.get("retrying", 0) > 0

    @property
    def troubles(self) -> list[str]:
        """Words of all that needs attention."""
        return [word for name, word in TROUBLES.items() if getattr(self, name)]
