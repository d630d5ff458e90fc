"""Report of statistics as plain values. Times are in UTC, durations in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from drain.pipeline.stats.question import WEEK

# Reason of dead jobs that were cancelled: shown among the dead, but not failures.
CANCELLED = "cancelled"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Times:
    """Distribution of a duration over a number of jobs."""

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
    """Figures of finished jobs.

    Attributes:
        finished: Number of finished jobs.
        retried: Number of finished jobs that took more than one attempt.
        attempts: Number of attempts of all finished jobs.
        waiting: Time from due to claimed, of jobs that were claimed once; None if there are none.
        processing: Time from claimed to finished.
        slowest_id: Id of the job with the longest processing time.
    """

    finished: int = 0
    retried: int = 0
    attempts: int = 0
    waiting: Times | None = None
    processing: Times | None = None
    slowest_id: int | None = None

    @property
    def retried_share(self) -> float:
        """Share of finished jobs that needed more than one attempt, from 0 to 1."""
        return self.retried / self.finished if self.finished else 0.0

    @property
    def attempts_per_job(self) -> float:
        """Mean attempts of a finished job; 1.0 if no attempt failed."""
        return self.attempts / self.finished if self.finished else 0.0

    @property
    def failed_attempts(self) -> int:
        """Number of failed attempts of the finished jobs."""
        return max(0, self.attempts - self.finished)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Ended jobs of one name on one queue, or of all names and queues if these are None.

    Attributes:
        queue: Queue of the jobs; None for all queues.
        job_name: Name of the jobs; None for all names.
        done: Figures of the finished jobs.
        dead: Number of dead jobs by reason; `CANCELLED` is one.
        dead_attempts: Number of attempts of the dead jobs that were not cancelled, which all failed.
    """

    queue: str | None = None
    job_name: str | None = None
    done: Finished = field(default_factory=Finished)
    dead: Mapping[str, int] = field(default_factory=dict)
    dead_attempts: int = 0

    @property
    def died(self) -> int:
        """Number of jobs that have died: dead, but not cancelled."""
        return sum(number for reason, number in self.dead.items() if reason != CANCELLED)

    @property
    def ended(self) -> int:
        """Number of jobs that have finished or died."""
        return self.done.finished + self.died

    @property
    def dead_share(self) -> float:
        """Share of dead jobs among the ended ones, from 0 to 1."""
        return self.died / self.ended if self.ended else 0.0

    @property
    def failed_attempts(self) -> int:
        """Number of failed attempts of finished and of dead jobs."""
        return self.done.failed_attempts + self.dead_attempts


@dataclass(frozen=True, kw_only=True)
class Group(Ended):
    """Ended and unfinished jobs of a group: `staged` and `inflight` are counts at the report's instant."""

    staged: int = 0
    inflight: int = 0


@dataclass(frozen=True, kw_only=True)
class Period(Ended):
    """Jobs that ended in the hour or the day that began at `start`."""

    start: datetime


@dataclass(frozen=True)
class Change:
    """Number of this week and of last week; None: unknown."""

    this: float | None
    last: float | None

    @property
    def percent(self) -> float | None:
        """Change since last week in percent; None if there was nothing last week, or is nothing this week."""
        return (self.this / self.last - 1) * 100 if self.last and self.this is not None else None


@dataclass(frozen=True)
class Weeks:
    """Jobs of a queue, or of all, that ended in the last seven days, and in the seven days before."""

    this: Ended
    last: Ended

    @property
    def queue(self) -> str | None:
        """Queue of the jobs; None for all queues."""
        return self.this.queue

    @property
    def jobs(self) -> int:
        """Number of jobs that finished or died in either week."""
        return self.this.ended + self.last.ended

    @property
    def changes(self) -> dict[str, Change]:
        """Each number of both weeks; times are in seconds."""
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
    """Error that dead jobs had in common.

    Attributes:
        text: Type and first line of the message, or the explanation, with # for numbers and ids.
        jobs: Number of the dead jobs.
        job_names: Their names, the most frequent first.
        last_seen: Time of the latest death.
    """

    text: str
    jobs: int
    job_names: list[str]
    last_seen: datetime


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report of statistics.

    Attributes:
        at: Instant that the report describes, by the database's clock.
        since: Time from which on ended jobs are covered; None: all jobs that are kept.
        per: Kind of the periods: hour or day.
        total: Figures of all jobs together.
        jobs: Figures by queue and name, the most frequent first.
        periods: Figures of the periods in which a job ended, the earliest first.
        details: Counts of the periods by queue and name, without times.
        weeks: This week and last week: of all queues first, then of the queues, the busiest first.
        errors: Most frequent errors of the dead jobs, the most frequent first.
        dropped_before: Day before which finished jobs have been dropped unarchived; None if none have.
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
    dropped_before: date | None = None

    @property
    def empty(self) -> bool:
        """True if no job has ended."""
        return not self.total.ended

    @property
    def covers_weeks(self) -> bool:
        """True if the report covers all jobs of the weeks that `weeks` compares."""
        begin = self.at - 2 * WEEK
        return not (self.since and self.since > begin) and not (
            self.dropped_before and self.dropped_before > begin.date()
        )

    def slowest(self, top: int) -> list[Group]:
        """Rank groups by the 95th percentile of their processing time, the slowest first."""
        timed = [job for job in self.jobs if job.done.processing]
        return sorted(timed, key=lambda job: -job.done.processing.p95 if job.done.processing else 0.0)[:top]

    def most_failing(self, top: int) -> list[Group]:
        """Rank groups with failures: those with the most dead jobs first, then those with the most failed attempts."""
        failing = [job for job in self.jobs if job.died or job.failed_attempts]
        return sorted(failing, key=lambda job: (-job.died, -job.failed_attempts))[:top]
