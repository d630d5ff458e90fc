"""Numbers of one queue at one instant."""

from __future__ import annotations

from dataclasses import dataclass, field

from drain.read.causes import CAUSES
from drain.tables.pauses import Pause
from drain.tables.rules import RulesRow

# The leader moves a due job within a second.
OVERDUE_SECONDS = 5
# Window for rates, and the wait after which a queue without a finish counts as stalled.
RATE_SECONDS = STALLED_SECONDS = 60
# Due jobs with these causes wait for a rule, a pause or a full list, not for the leader.
_RULED = frozenset({"paused", "limited", "rate"})
_HELD = _RULED | {"list_full"}
# Totals made up of several states or causes.
_PARTS = {
    "staged": ("ready", "scheduled"),
    "overdue": ("ready",),
    "inflight": ("queued", "running", "retrying"),
    "waits": tuple(set(CAUSES) - {"scheduled", "retrying"}),
}


@dataclass(slots=True)
class Queue:
    """Numbers of one queue; `workers`, `free` and `redis_depth` are None until Redis is asked.

    Attributes:
        ready: Due staged jobs.
        scheduled: Staged jobs that are not due yet.
        queued: Jobs in flight awaiting a worker, or redelivery after their worker died.
        running: Claimed jobs with a live lease.
        retrying: Jobs awaiting their next attempt, after a failure or a deferral.
        waiting: Waiting jobs by cause (`causes.CAUSES`).
        estimates: States and causes with extrapolated numbers.
        ready_seconds: Age of the oldest due staged job.
        queued_seconds: Wait of the oldest delivered job, since its last attempt if any.
        oldest_queued_id: Id of that job.
        retrying_seconds: Time since the oldest next attempt came due.
        per_second: Jobs finished per second over the last minute.
        failing: Five jobs failed since the last finish, and some await a retry.
        paused: Pause of the whole queue.
        free: Workers that could start a job at once.
        redis_depth: Ids in its Redis list, including plain RQ jobs and other databases' jobs.
    """

    ready: int = 0
    scheduled: int = 0
    queued: int = 0
    running: int = 0
    retrying: int = 0
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
        """Return True if the number of this attribute or cause is not exact."""
        return any(part in self.estimates for part in _PARTS.get(name, (name,)))

    @property
    def staged(self) -> int:
        """Rows in `staged_jobs`."""
        return self.ready + self.scheduled

    @property
    def inflight(self) -> int:
        """Drained, unfinished jobs."""
        return self.queued + self.running + self.retrying

    @property
    def jobs(self) -> int:
        """All unfinished jobs."""
        return self.staged + self.inflight + self.dead

    @property
    def waits(self) -> int:
        """Waiting jobs that a rule, a pause or a missing worker keeps from starting."""
        return sum(self.waiting.get(cause, 0) for cause in _PARTS["waits"])

    @property
    def overdue(self) -> int:
        """Due jobs, if the leader is late with the first."""
        return self.ready if self.lag_seconds > OVERDUE_SECONDS else 0

    @property
    def oldest_seconds(self) -> float:
        """Longest wait of a due job, else 0."""
        return max(self.ready_seconds, self.queued_seconds, self.retrying_seconds)

    @property
    def lag_seconds(self) -> float:
        """Longest wait for the leader; 0 while rules, a pause or a full list hold jobs."""
        return 0.0 if _HELD & self.waiting.keys() else self.ready_seconds

    @property
    def wait_seconds(self) -> float:
        """Longest wait for a worker that no rule or pause explains, else 0."""
        return self.queued_seconds if _RULED & self.waiting.keys() else self.oldest_seconds

    @property
    def stalled_seconds(self) -> float:
        """Longest wait for a worker, if over a minute without a finish, else 0."""
        stalls = self.queued_seconds > STALLED_SECONDS and not self.per_second and self.paused is None
        return self.queued_seconds if stalls else 0.0

    @property
    def is_stalled(self) -> bool:
        """True if it stalls with workers, as far as known."""
        return self.stalled_seconds > 0 and not self.is_unattended

    @property
    def held(self) -> str | None:
        """Why the leader cannot follow the rules and holds the queue; else None."""
        return self.rules.error if self.rules else None

    @property
    def is_unattended(self) -> bool:
        """True if jobs wait, or will be retried, and no worker runs them."""
        return self.workers == 0 and self.waits + self.waiting.get("retrying", 0) > 0
