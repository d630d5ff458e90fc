"""Report of statistics as plain values. Times are in UTC, durations in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

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
        finished: How many.
        retried: How many of them took more than one attempt.
        attempts: Of all of them together.
        waiting: From due to claimed, of those that took one attempt; None if none did.
        processing: From claimed to finished.
        slowest_id: Which was processed for longest.
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
        """Attempts that failed before the one that finished."""
        return max(0, self.attempts - self.finished)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Ended jobs: those of one name on one queue, or of all where these are None.

    Attributes:
        queue: Theirs.
        job_name: Theirs.
        done: Those that finished.
        dead: How many were given up, by reason.
        dead_attempts: Attempts of those, which all failed.
    """

    queue: str | None = None
    job_name: str | None = None
    done: Finished = field(default_factory=Finished)
    dead: Mapping[str, int] = field(default_factory=dict)
    dead_attempts: int = 0

    @property
    def died(self) -> int:
        """Number of dead jobs, for any reason."""
        return sum(self.dead.values())

    @property
    def dead_share(self) -> float:
        """Share of dead jobs among the ended ones, from 0 to 1."""
        ended = self.done.finished + self.died
        return self.died / ended if ended else 0.0

    @property
    def failed_attempts(self) -> int:
        """Number of failed attempts."""
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


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report of statistics.

    Attributes:
        at: The instant that it describes, by the database's clock.
        since: Only what ended at this time or later; None: all there is.
        per: hour or day.
        total: Of all jobs together.
        jobs: By queue and name; the most frequent first.
        periods: Those in which anything ended, the earliest first.
        details: The same by queue and name; counts only.
        dropped_before: Finished jobs of the days before this one have been dropped unarchived; None if none have.
    """

    at: datetime
    since: datetime | None
    per: str
    total: Group
    jobs: list[Group]
    periods: list[Period]
    details: list[Period]
    dropped_before: date | None = None

    @property
    def empty(self) -> bool:
        """True if no job has ended."""
        return not self.total.done.finished and not self.total.died

    def slowest(self, top: int) -> list[Group]:
        """Rank groups by the 95th percentile of their processing time, the slowest first."""
        timed = [job for job in self.jobs if job.done.processing]
        return sorted(timed, key=lambda job: -job.done.processing.p95 if job.done.processing else 0.0)[:top]

    def most_failing(self, top: int) -> list[Group]:
        """Rank groups with failures: those with the most dead jobs first, then those with the most failed attempts."""
        failing = [job for job in self.jobs if job.died or job.failed_attempts]
        return sorted(failing, key=lambda job: (-job.died, -job.failed_attempts))[:top]
