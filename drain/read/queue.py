"""Numbers of one queue at one instant, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from drain.read.causes import CAUSES
from drain.tables.pauses import Pause
from drain.tables.rules import RulesRow

# Age from which a job is overdue that waits for the leader, which moves it within a second; in seconds.
OVERDUE_SECONDS = 5
# Time over which rates are measured, and after which a queue stalls: a job has waited for a worker, and none has
# finished, for so many seconds.
RATE_SECONDS = STALLED_SECONDS = 60
# Causes for which due jobs wait by a rule, a pause or a full list, and not for the leader.
_RULED = frozenset({"paused", "limited", "rate"})
_HELD = _RULED | {"list_full"}
# States and causes whose numbers make up others.
_PARTS = {
    "staged": ("ready", "scheduled"),
    "overdue": ("ready",),
    "inflight": ("queued", "running", "retrying"),
    "waits": tuple(set(CAUSES) - {"scheduled", "retrying"}),
}


@dataclass(slots=True)
class Queue:
    """Numbers of one queue.

    Attributes:
        ready: Staged jobs that are due.
        scheduled: Staged jobs whose time has not come.
        queued: Jobs in flight that wait for a worker, or are about to be delivered again since their worker died.
        running: Claimed jobs whose lease holds.
        retrying: Jobs that wait for the time of their next attempt, after a failure or a deferral.
        dead: Jobs that were given up.
        waiting: Number of jobs that wait, staged or in flight, by cause, one of `causes.CAUSES`.
        estimates: States and causes whose numbers are worked out from a part of the jobs.
        ready_seconds: Time for which the oldest due job has waited in `staged_jobs`; 0 if none waits there.
        queued_seconds: Wait of the oldest delivered job for a worker; 0 if none waits. A later attempt waits since the
            last one began or failed.
        oldest_queued_id: Id of that job.
        retrying_seconds: Time for which a next attempt has been due; 0 if none is.
        per_second: Jobs that end in a second, over the last minute.
        failing: Five of its jobs have failed since its last finish, and some of them wait to be tried again.
        paused: Pause of the whole queue; None without one.
        rules: Rules of the queue; None without any.
        workers: Number of live workers that run its jobs; None while Redis has not been asked.
        free: Number of those that could begin a job at once; None as for `workers`.
        redis_depth: Number of ids in its Redis list, with those of plain RQ jobs and of other databases; None as for
            `workers`.
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
        """Return True if a number of jobs, by the name of its attribute or its cause, is not exact."""
        return any(part in self.estimates for part in _PARTS.get(name, (name,)))

    @property
    def staged(self) -> int:
        """Number of its rows in `staged_jobs`."""
        return self.ready + self.scheduled

    @property
    def inflight(self) -> int:
        """Number of jobs that were drained, and are neither finished nor dead."""
        return self.queued + self.running + self.retrying

    @property
    def jobs(self) -> int:
        """Number of all jobs that are not finished."""
        return self.staged + self.inflight + self.dead

    @property
    def waits(self) -> int:
        """Number of the jobs that wait and could start now, but for a rule, a pause or a worker."""
        return sum(self.waiting.get(cause, 0) for cause in _PARTS["waits"])

    @property
    def overdue(self) -> int:
        """Number of its due jobs, if the leader should have moved the first of them seconds ago."""
        return self.ready if self.lag_seconds > OVERDUE_SECONDS else 0

    @property
    def oldest_seconds(self) -> float:
        """Time for which the oldest due job has waited for a worker; 0 if none waits."""
        return max(self.ready_seconds, self.queued_seconds, self.retrying_seconds)

    @property
    def lag_seconds(self) -> float:
        """Time for which the oldest due job has waited for the leader; 0 if rules, a pause or a full list hold some."""
        return 0.0 if _HELD & self.waiting.keys() else self.ready_seconds

    @property
    def wait_seconds(self) -> float:
        """Wait of the oldest due job for a worker, not behind a rule or a pause; 0 if none waits."""
        return self.queued_seconds if _RULED & self.waiting.keys() else self.oldest_seconds

    @property
    def stalled_seconds(self) -> float:
        """Wait of the oldest job, if jobs have waited for a worker for a minute and none has ended; 0 if not."""
        stalls = self.queued_seconds > STALLED_SECONDS and not self.per_second and self.paused is None
        return self.queued_seconds if stalls else 0.0

    @property
    def is_stalled(self) -> bool:
        """True if it has workers, as far as is known, and they have ended none of its jobs for a minute."""
        return self.stalled_seconds > 0 and not self.is_unattended

    @property
    def held(self) -> str | None:
        """Reason why the leader cannot follow its rules, and holds the queue; None if it does not."""
        return self.rules.error if self.rules else None

    @property
    def is_unattended(self) -> bool:
        """True if jobs wait, or will be tried again, and no worker runs them."""
        return self.workers == 0 and self.waits + self.waiting.get("retrying", 0) > 0
