"""Result of an explanation, and the words of all causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

# Stable words of `drain explain --json`, in the order tried.
CAUSES: Mapping[str, str] = {
    "not_given_out": "no job has had this id so far",
    "uncommitted": "no table has the id, and a transaction that stages is open: the id may be one of its ids",
    "absent": "no table has the id, and it comes no more: rolled back, forwarded, discarded or archived",
    "finished": "the job has finished",
    "superseded": "another job of the same unique key stands for the job",
    "dead": "the job was given up",
    "cancelled": "the job was cancelled",
    "running": "a worker runs the job",
    "scheduled": "its time has not come",
    "retry_at": "the time of its next attempt after a failure has not come",
    "deferred": "the job has asked to run later",
    "no_leader": "no `drain run` leads",
    "redis_away": "Redis does not answer",
    "other_database": "another database feeds the queue in this Redis",
    "suspended": "`rq suspend` holds all workers",
    "paused": "the queue, the job name or the key is paused",
    "held": "the leader holds the queue: it cannot follow its rules",
    "expired": "its `expires_at` has passed: the leader gives the job up",
    "quiet": "jobs of its unique key still come: it waits until none has come for `quiet`",
    "gives_way": "another job of its unique key stands for it: it ends as superseded",
    "failing_queue": "the queue fails again and again: retries are let through one at a time",
    "order_dead": "a job of its key is dead, and the queue, which is ordered, holds the key",
    "order": "an earlier job of its key has not ended, and the queue is ordered",
    "limit": "as many jobs of the queue run as may run",
    "limit_of_key": "as many jobs of its key run as may run",
    "rate": "the rate of the queue is used up",
    "rate_of_key": "the rate of its key is used up",
    "no_worker": "no worker takes jobs of the queue",
    "workers_busy": "all workers of the queue are busy, and none has begun a job for a while",
    "list_full": "the list in Redis has enough for the workers, and other jobs come first",
    "lease_over": "its worker died or hangs: the leader delivers the job again",
    "next": "nothing holds the job: the leader takes it in one of its next batches",
    "queued": "the job is in the list in Redis, behind others",
    "popped": "the job is not in the list: a worker is about to claim the job, or the leader is about to push it",
}


class Estimate(NamedTuple):
    """Seconds until a job starts, if known, and the reason."""

    seconds: float | None
    reason: str


class Finding(NamedTuple):
    """Cause, as found.

    Attributes:
        cause: One of `CAUSES`.
        why: Readable clause.
        details: The same for programs.
    """

    cause: str
    why: str
    since: datetime | None
    estimate: Estimate
    details: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one job at one instant.

    Attributes:
        state: `unknown`, `staged`, `queued`, `running`, `retrying`, `deferred`, `called_back` by a pause, `stalled`,
            `finished` or `dead`.
        now: The database's clock.
        also: Remarks on unreadable facts.
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
        """Estimated start, if any."""
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
