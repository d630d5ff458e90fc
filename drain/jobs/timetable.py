"""Ticks of a cron line in a time zone.

Five fields as in crontab(5), or six with seconds first. Daylight saving time, as in Debian's cron:

- With fixed hours and minutes, a skipped time ticks right after the change, a repeated time once.
- With six fields, or minutes or hours beginning with `*`, ticks follow real time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from drain.formatting import visible

if TYPE_CHECKING:
    from cronsim import CronSim

# Ticks that passed without a leader.
MISSED = ("last", "all", "none")
# With `cron:` it becomes a tag.
LONGEST_NAME = 250
# As in the schema.
_LONGEST = 255
_FIELDS = (5, 6)
_HOUR_SECONDS = 3600
# Searched back for the latest tick; doubles each time.
_FIRST_WINDOW = timedelta(minutes=1)
# Machine-dependent zone names.
_LOCAL_ZONES = {"localtime", "posixrules"}


class TimetableError(ValueError):
    """Cron line or time zone is invalid, or the line never ticks."""


class Timetable:
    """Ticks of a cron line, in UTC; TimetableError for an invalid line or zone."""

    def __init__(self, cron: str, timezone: str = "UTC") -> None:
        self.cron = cron
        self.timezone = timezone
        self._zone = _zone(timezone)
        if cron.startswith("@"):
            raise TimetableError(f"{_shown(cron)} is a nickname: write the five fields, such as '0 0 * * *'")
        if len(cron) > _LONGEST:
            raise TimetableError(f"a cron line has at most {_LONGEST} characters, not {len(cron):,}")
        if len(fields := cron.split()) not in _FIELDS:
            raise TimetableError(
                f"{_shown(cron)} has {len(fields)} fields, and a cron line has five: "
                "minute, hour, day of the month, month, day of the week; or six, with seconds first"
            )
        next(self._ticks(datetime.now(UTC)))

    def after(self, moment: datetime) -> datetime:
        """First tick after a moment; TimetableError if none in 50 years."""
        return next(self._ticks(moment))

    def until(self, first: datetime, end: datetime) -> Iterator[datetime]:
        """Yield `first` and later ticks up to `end`."""
        yield first
        yield from takewhile(lambda tick: tick <= end, self._ticks(first))

    def latest(self, first: datetime, end: datetime) -> datetime:
        """Latest tick between `first` and `end`."""
        window = _FIRST_WINDOW
        # A year's ticks need not be counted.
        while (begin := end - window) > first:
            *_, latest = (None, *takewhile(lambda tick: tick <= end, self._ticks(begin)))
            if latest is not None:
                return latest
            window *= 2
        *_, latest = self.until(first, end)
        return latest

    def _ticks(self, moment: datetime) -> Iterator[datetime]:
        # Few programs have schedules.
        from cronsim import CronSimError

        try:
            for tick in _simulation()(self.cron, moment.astimezone(self._zone)):
                at = tick.astimezone(UTC)
                # CronSim begins with the first tick of a repeated hour.
                if at > moment:
                    yield at
        except (CronSimError, ValueError, AssertionError) as error:
            raise TimetableError(f"the cron line {_shown(self.cron)} {_why(error)}") from None
        raise TimetableError(f"the cron line {_shown(self.cron)} never ticks: there is no such day")


@cache
def _simulation() -> type[CronSim]:
    """Adapt CronSim to clock changes of less than an hour (Lord Howe Island)."""
    from cronsim import CronSim

    class Simulation(CronSim):
        def tick(self, seconds: int = 1) -> None:
            """Step, but never across a clock change."""
            if self.dt.tzinfo in (None, UTC):
                super().tick(seconds)
                return
            now = self.dt.astimezone(UTC)
            local = now.astimezone(self.dt.tzinfo)
            if seconds == _HOUR_SECONDS:
                # CronSim starts from the full hour, which in a gap never existed and may map to the next full hour.
                begin = self.dt.replace(minute=0, second=0, tzinfo=None)
                end = begin + timedelta(seconds=_HOUR_SECONDS)
                seconds = max(0, int((end - local.replace(tzinfo=None)).total_seconds()))
                if not seconds:
                    self.dt = local
                    return
            # Bisect for the clock change.
            before, after = 0, seconds
            if _offset_at(local, now, after) != local.utcoffset():
                while after - before > 1:
                    middle = (before + after) // 2
                    if _offset_at(local, now, middle) == local.utcoffset():
                        before = middle
                    else:
                        after = middle
            self.dt = (now + timedelta(seconds=after)).astimezone(self.dt.tzinfo)

    return Simulation


def _offset_at(local: datetime, now: datetime, seconds: int) -> timedelta | None:
    return (now + timedelta(seconds=seconds)).astimezone(local.tzinfo).utcoffset()


@lru_cache(maxsize=1024)
def timetable(cron: str, timezone: str) -> Timetable:
    """Return a cached timetable."""
    return Timetable(cron, timezone)


def check_schedule(cron: str, timezone: str, missed: str) -> None:
    """Check a schedule; TimetableError if invalid."""
    if not isinstance(cron, str) or not isinstance(timezone, str):
        raise TimetableError(f"cron and timezone must be strings, not {cron!r} and {timezone!r}")
    if missed not in MISSED:
        raise TimetableError(f"missed must be 'last', 'all' or 'none', not {missed!r}")
    Timetable(cron, timezone)


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    if name in _LOCAL_ZONES:
        raise TimetableError(
            f"the time zone {_shown(name)} differs from machine to machine: use a name such as 'Europe/Berlin'"
        )
    try:
        return ZoneInfo(name)
    # A name may lead to a directory, out of tzdata, or to another file.
    except (KeyError, ValueError, OSError):
        raise TimetableError(
            f"there is no time zone {_shown(name)}: use a name such as 'Europe/Berlin' (zones come from the system's "
            "tzdata, or the Python package of that name)"
        ) from None


def _why(error: Exception) -> str:
    reason = str(error).lower()
    if "day-of-month" in reason:
        # The parser refuses February 31 like any 32nd.
        return f"cannot be read or never ticks: {reason}, or none of its months has that day"
    return f"cannot be read: {reason}"


def _shown(text: str) -> str:
    return repr(visible(text[:100]))


def with_next_tick(schedule: dict[str, Any]) -> dict[str, Any]:
    """Add a missing next tick, or its error."""
    if schedule["next_tick_at"] or schedule["error"] or schedule["paused"]:
        return schedule
    try:
        table = timetable(schedule["cron"], schedule["timezone"])
        return schedule | {"next_tick_at": table.after(schedule["changed_at"])}
    except TimetableError as error:
        return schedule | {"error": str(error)}
