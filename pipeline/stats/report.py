"""Report as plain values, in UTC and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from drain.pipeline.stats.question import WEEK

# Reason shown among the dead, but not a failure.
CANCELLED = "cancelled"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Times:
    """Distribution of a duration over jobs."""

    jobs: int
    avg: float
    min: float
    max: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Figures of finished jobs; `retried` had several attempts, `waiting` covers jobs claimed once."""

    finished: int = 0
    retried: int = 0
    attempts: int = 0
    waiting: Times | None = None
    processing: Times | None = None
    slowest_id: int | None = None

    @property
    def retried_share(self) -> float:
        """Share of retried jobs, from 0 to 1."""
        return self.retried / self.finished if self.finished else 0.0

    @property
    def attempts_per_job(self) -> float:
        """Mean attempts per finished job."""
        return self.attempts / self.finished if self.finished else 0.0

    @property
    def failed_attempts(self) -> int:
        """Failed attempts of finished jobs."""
        return max(0, self.attempts - self.finished)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Ended jobs of one queue and name, None for all; `dead_attempts` excludes cancelled jobs."""

    queue: str | None = None
    job_name: str | None = None
    done: Finished = field(default_factory=Finished)
    dead: Mapping[str, int] = field(default_factory=dict)
    dead_attempts: int = 0

    @property
    def died(self) -> int:
        """Dead jobs that were not cancelled."""
        return sum(number for reason, number in self.dead.items() if reason != CANCELLED)

    @property
    def ended(self) -> int:
        """Jobs that finished or died."""
        return self.done.finished + self.died

    @property
    def dead_share(self) -> float:
        """Share of dead jobs, from 0 to 1."""
        return self.died / self.ended if self.ended else 0.0

    @property
    def failed_attempts(self) -> int:
        """Failed attempts of finished and dead jobs."""
        return self.done.failed_attempts + self.dead_attempts


@dataclass(frozen=True, kw_only=True)
class Group(Ended):
    """Jobs of a group; `staged` and `inflight` at the report's instant."""

    staged: int = 0
    inflight: int = 0


@dataclass(frozen=True, kw_only=True)
class Period(Ended):
    """Jobs that ended in the hour or day from `start`."""

    start: datetime


@dataclass(frozen=True)
class Change:
    """Number of this and last week; None if unknown."""

    this: float | None
    last: float | None

    @property
    def percent(self) -> float | None:
        """Change in percent; None if last week's is zero or either is unknown."""
        return (self.this / self.last - 1) * 100 if self.last and self.this is not None else None


@dataclass(frozen=True)
class Weeks:
    """Jobs that ended in the last seven days and the seven before."""

    this: Ended
    last: Ended

    @property
    def queue(self) -> str | None:
        """Queue; None for all."""
        return self.this.queue

    @property
    def jobs(self) -> int:
        """Jobs that ended in either week."""
        return self.this.ended + self.last.ended

    @property
    def changes(self) -> dict[str, Change]:
        """Numbers of both weeks; times in seconds."""
        this, last = _numbers(self.this), _numbers(self.last)
        return {name: Change(this[name], last[name]) for name in this}


def _numbers(week: Ended) -> dict[str, float | None]:
    waiting, processing = week.done.waiting, week.done.processing
    return {
        "finished": week.done.finished,
        "dead": week.died,
        "failed_attempts": week.failed_attempts,
        "waiting_p50": waiting.p50 if waiting else None,
        "waiting_p95": waiting.p95 if waiting else None,
        "processing_p95": processing.p95 if processing else None,
    }


@dataclass(frozen=True)
class Error:
    """Error common to dead jobs: `text` has # for numbers and ids, `job_names` are by frequency."""

    text: str
    jobs: int
    job_names: list[str]
    last_seen: datetime


@dataclass(frozen=True, kw_only=True)
class Flows:
    """Flows of one name, empty for batches and flows without one; `members` counts those of all, `dead` ones too."""

    name: str
    finished: int
    unfinished: int
    cancelled: int
    members: int
    dead: int
    duration: Times | None


@dataclass(frozen=True, kw_only=True)
class Node:
    """Processing times of a node, in all flows of a name."""

    flow: str
    node: str
    processing: Times


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report of statistics.

    Attributes:
        at: By the database's clock.
        since: None for all jobs.
        jobs: By queue and name, most frequent first, like `errors`.
        periods: Those with a job that ended, earliest first.
        details: Counts by period, queue and name, without times.
        weeks: All queues, then each, the busiest first.
        flows: By name, most frequent first.
        nodes: Slowest first, by p95.
        dropped_before: Day before which finished jobs were dropped unarchived.
    """

    at: datetime
    since: datetime | None
    per: str
    total: Group
    jobs: list[Group]
    periods: list[Period]
    details: list[Period]
    weeks: list[Weeks] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)
    flows: list[Flows] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    dropped_before: date | None = None

    @property
    def empty(self) -> bool:
        """True if no job has ended."""
        return not self.total.ended

    @property
    def covers_weeks(self) -> bool:
        """True if the report covers all jobs of `weeks`."""
        begin = self.at - 2 * WEEK
        return not (self.since and self.since > begin) and not (
            self.dropped_before and self.dropped_before > begin.date()
        )

    def slowest(self, top: int) -> list[Group]:
        """Rank groups by processing time's p95."""
        timed = [job for job in self.jobs if job.done.processing]
        return sorted(timed, key=lambda job: -job.done.processing.p95 if job.done.processing else 0.0)[:top]

    def most_failing(self, top: int) -> list[Group]:
        """Rank groups by dead jobs, then by failed attempts."""
        failing = [job for job in self.jobs if job.died or job.failed_attempts]
        return sorted(failing, key=lambda job: (-job.died, -job.failed_attempts))[:top]
