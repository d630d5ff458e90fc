"""Result of an explanation, and descriptions of all causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

# Stable identifiers in `drain explain --json`, in the order checked.
CAUSES: Mapping[str, str] = {
    "not_given_out": "this id has not been assigned yet",
    "uncommitted": "an open transaction may have staged it",
    "absent": "rolled back, forwarded, discarded or archived",
    "finished": "the job completed",
    "superseded": "another job with the same unique key replaced it",
    "dead": "the job is dead",
    "cancelled": "the job was cancelled",
    "running": "a worker is running it",
    "blocked": "it waits for other jobs to finish",
    "scheduled": "it is due later",
    "retry_at": "it failed, and its next attempt is due later",
    "deferred": "it deferred itself, or its worker stopped",
    "parked": "it waits for an event, or sleeps",
    "no_leader": "no `drain run` is leading",
    "redis_away": "Redis is unavailable",
    "other_database": "the queue in this Redis belongs to another database",
    "suspended": "`rq suspend` has paused all workers",
    "paused": "its queue, job name, key or flow is paused",
    "held": "the leader cannot apply the queue's rules",
    "expired": "its `expires_at` has passed: it will not run",
    "quiet": "its `quiet` time has not passed",
    "gives_way": "another job with the same unique key will replace it",
    "failing_queue": "the queue keeps failing, so retries start one at a time",
    "order_dead": "the queue is ordered, and a dead job holds its key",
    "order": "the queue is ordered, and an earlier job with its key is unfinished",
    "limit": "the queue's concurrency limit is reached",
    "limit_of_key": "the key's concurrency limit is reached",
    "rate": "the queue's rate limit is reached",
    "rate_of_key": "the key's rate limit is reached",
    "no_worker": "no worker serves the queue",
    "workers_busy": "all workers of the queue are busy with long jobs",
    "list_full": "the queue's Redis list is full",
    "lease_over": "its worker died or stalled: the leader will deliver it again",
    "next": "nothing blocks it: it will be in one of the next batches",
    "queued": "it is in the queue's Redis list, behind others",
    "popped": "a worker is about to claim it, or the leader will push it",
}


class Estimate(NamedTuple):
    """Seconds until a start, if known, and the reason."""

    seconds: float | None
    reason: str


class Finding(NamedTuple):
    """Cause, as found.

    Attributes:
        details: The reason, for programs.
    """

    cause: str
    why: str
    since: datetime | None
    estimate: Estimate
    details: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one job.

    Attributes:
        state: `unknown`, `blocked`, `staged`, `queued`, `running`, `retrying`, `deferred`, `parked`, `called_back` by
            a pause, `stalled`, `finished` or `dead`.
        now: The database's clock.
        also: Notes on unknown facts.
    """

    id: int
    state: str
    finding: Finding
    now: datetime
    job_name: str | None = None
    queue: str | None = None
    key: str | None = None
    also: tuple[str, ...] = field(default=())

    @property
    def starts_at(self) -> datetime | None:
        """Estimated start."""
        seconds = self.finding.estimate.seconds
        return None if seconds is None else self.now + timedelta(seconds=seconds)

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types, except times."""
        finding = self.finding
        return {
            "id": self.id,
            "state": self.state,
            "cause": finding.cause,
            "why": finding.why,
            "since": finding.since,
            "estimate": {**finding.estimate._asdict(), "at": self.starts_at},
            "job_name": self.job_name,
            "queue": self.queue,
            "key": self.key,
            "details": dict(finding.details),
            "also": list(self.also),
        }
