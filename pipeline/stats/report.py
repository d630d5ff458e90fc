"""The statistics as plain values. Times are in UTC, durations in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Times:
    """How long something took, over so many jobs."""

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
    """What finished jobs had in common.

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
        """From 0 to 1."""
        return self.retried / self.finished if self.finished else 0.0

    @property
    def attempts_per_job(self) -> float:
        """1.0 if nothing ever failed."""
        return self.attempts / self.finished if self.finished else 0.0

    @property
    def failed_attempts(self) -> int:
        """Attempts that failed before the one that finished."""
        return max(0, self.attempts - self.finished)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What came to an end: jobs of one name on one queue, or of all where these are None.

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
        """How many were given up, whatever the reason."""
        return sum(self.dead.values())

    @property
    def dead_share(self) -> float:
        """Of those that came to an end, from 0 to 1."""
        ended = self.done.finished + self.died
        return self.died / ended if ended else 0.0

    @property
    def failed_attempts(self) -> int:
        """All attempts that failed."""
        return self.done.failed_attempts + self.dead_attempts


@dataclass(frozen=True, kw_only=True)
class Group(Ended):
    """What ended, and what is still under way: `staged` and `inflight` count it at the report's instant."""

    staged: int = 0
    inflight: int = 0


@dataclass(frozen=True, kw_only=True)
class Period(Ended):
    """What ended in the hour or the day that began at `start`."""

    start: datetime


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of it.

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
        """Whether nothing has come to an end."""
        return not self.total.done.finished and not self.total.died

    def slowest(self, top: int) -> list[Group]:
        """Those that 95 of 100 times are done only after this long; the slowest first."""
        timed = [job for job in self.jobs if job.done.processing]
        return sorted(timed, key=lambda job: -job.done.processing.p95 if job.done.processing else 0.0)[:top]

    def most_failing(self, top: int) -> list[Group]:
        """Those that fail at all: first whoever has the most dead jobs, then the most failed attempts."""
        failing = [job for job in self.jobs if job.died or job.failed_attempts]
        return sorted(failing, key=lambda job: (-job.died, -job.failed_attempts))[:top]
