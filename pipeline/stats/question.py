"""Question that a report answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from drain.errors import ConfigError

PERIODS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
WEEK = timedelta(weeks=1)

_FIRST = datetime.min.replace(tzinfo=UTC)
_AGO = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
# Postgres and Spark read these characters alike in single quotes; chr() writes the others.
_PLAIN = re.compile(r"([^'\\]+)|['\\]")


@dataclass(frozen=True, kw_only=True)
class Question:
    """Selection of jobs and periods; a duration in `since` ends now, by the database's clock."""

    since: datetime | timedelta | None = None
    queue: str | None = None
    job: str | None = None
    per: str = "day"

    @property
    def period(self) -> timedelta:
        """Length of a period."""
        return PERIODS[self.per]

    def begin(self, now: datetime) -> datetime | None:
        """Start of the report, in UTC."""
        if not isinstance(self.since, timedelta):
            return self.since
        now = now.astimezone(UTC)
        return now - min(self.since, now - _FIRST)

    def condition(self, now: datetime) -> str | None:
        """Condition on finished jobs, in SQL common to Postgres and Spark, if any."""
        begin = self.begin(now)
        conditions = [
            # The offset makes the literal independent of the session's time zone.
            f"finished_at >= '{begin.isoformat(sep=' ')}'" if begin else None,
            f"queue = {literal(self.queue)}" if self.queue is not None else None,
            f"job_name = {literal(self.job)}" if self.job is not None else None,
        ]
        return " AND ".join(condition for condition in conditions if condition) or None


def parse_time(text: str) -> datetime | timedelta:
    """Parse a time: 2026-11-01, 2026-11-01T12:00+01:00, 7d, 24h; UTC without an offset."""
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago:
            return timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is not a time; give 2026-11-01, 2026-11-01T12:00, 7d, 24h or 30m"
        ) from None


def literal(text: str) -> str:
    """Quote a text for Postgres and Spark."""
    parts = [f"'{found[1]}'" if found[1] else f"chr({ord(found[0])})" for found in _PLAIN.finditer(text)]
    return f"({' || '.join(parts)})" if parts else "''"
