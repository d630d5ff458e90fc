"""Ticks of a schedule: a cron line, read in a time zone.

The line has the five fields of crontab(5), or six: seconds first. The change of daylight saving time is treated as by
Debian's cron:

- A line with fixed hours and minutes ticks once a day at each of its times. A time that the clock skips ticks right
  after the change, and of a time that the clock shows twice the first one ticks.
- A line of six fields, or whose minutes or hours begin with `*`, follows real time: it does not tick in an hour that is
  skipped, and ticks in both of two equal hours.
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

# Rules for ticks that passed while there was no leader.
MISSED = ("last", "all", "none")
# Upper bound of the characters of a schedule's name: with `cron:` before it, it is a tag.
LONGEST_NAME = 250
# Upper bound of the characters of a line and of a zone, as in the schema.
_LONGEST = 255
_FIELDS = (5, 6)
_HOUR_SECONDS = 3600
# Parts of a time that is looked back through for the latest tick; each further one is twice as long.
_FIRST_WINDOW = timedelta(minutes=1)
# Names that lead to another zone on each machine.
_LOCAL_ZONES = {"localtime", "posixrules"}


class TimetableError(ValueError):
    """A cron line or a time zone cannot be read, or the line never ticks; the text says which."""


class Timetable:
    """The ticks of one cron line in one time zone; all times are in UTC.

    Args:
        cron: Five fields, as in crontab(5), or six with the seconds first.
        timezone: Name of a zone, such as `Europe/Berlin`.

    Raises:
        TimetableError: The line or the zone cannot be read.
    """

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
                "minute, hour, day of the month, month, day of the week; or six, with the seconds first"
            )
        next(self._ticks(datetime.now(UTC)))

    def after(self, moment: datetime) -> datetime:
        """Return the first tick after this moment.

        Raises:
            TimetableError: There is none within 50 years.
        """
        return next(self._ticks(moment))

    def until(self, first: datetime, end: datetime) -> Iterator[datetime]:
        """Yield this tick, and all later ones up to this moment."""
        yield first
        yield from takewhile(lambda tick: tick <= end, self._ticks(first))

    def latest(self, first: datetime, end: datetime) -> datetime:
        """Return the latest tick from this one on and up to this moment: `first` if there is no later one."""
        window = _FIRST_WINDOW
        # The ticks of a year need not be counted to find the last of them.
        while (begin := end - window) > first:
            *_, latest = (None, *takewhile(lambda tick: tick <= end, self._ticks(begin)))
            if latest is not None:
                return latest
            window *= 2
        *_, latest = self.until(first, end)
        return latest

    def _ticks(self, moment: datetime) -> Iterator[datetime]:
        """Yield the ticks after this moment.

        Raises:
            TimetableError: There is none within 50 years.
        """
        # Imported here, as zoneinfo is: only programs with schedules need it.
        from cronsim import CronSimError

        try:
            for tick in _simulation()(self.cron, moment.astimezone(self._zone)):
                at = tick.astimezone(UTC)
                # In an hour that the clock shows twice, a line that ticks in the first one alone begins with that.
                if at > moment:
                    yield at
        except (CronSimError, ValueError, AssertionError) as error:
            raise TimetableError(f"the cron line {_shown(self.cron)} {_why(error)}") from None
        raise TimetableError(f"the cron line {_shown(self.cron)} never ticks: there is no such day")


@cache
def _simulation() -> type[CronSim]:
    """Return CronSim for zones whose clock changes by less than an hour, too (Lord Howe Island)."""
    from cronsim import CronSim

    class Simulation(CronSim):
        def tick(self, seconds: int = 1) -> None:
            """Step forward, but never over a change of the clock; a step of an hour ends at a full hour."""
            if self.dt.tzinfo in (None, UTC):
                super().tick(seconds)
                return
            now = self.dt.astimezone(UTC)
            local = now.astimezone(self.dt.tzinfo)
            if seconds == _HOUR_SECONDS:
                # CronSim goes to the beginning of the hour first. In a gap of the clock that is a time that never was,
                # and the moment that stands for it may be the next full hour already.
                begin = self.dt.replace(minute=0, second=0, tzinfo=None)
                end = begin + timedelta(seconds=_HOUR_SECONDS)
                seconds = max(0, int((end - local.replace(tzinfo=None)).total_seconds()))
                if not seconds:
                    self.dt = local
                    return
            # The change, if there is one: the first moment with another offset.
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
    """Return the timetable of a line and a zone; the last thousand are remembered.

    Raises:
        TimetableError: As for `Timetable`.
    """
    return Timetable(cron, timezone)


def check_schedule(cron: str, timezone: str, missed: str) -> None:
    """Check a cron line, its time zone, and its rule for ticks that passed while there was no leader.

    Raises:
        TimetableError: One of the three cannot be used.
    """
    if not isinstance(cron, str) or not isinstance(timezone, str):
        raise TimetableError(f"cron and timezone must be texts, not {cron!r} and {timezone!r}")
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
    # A name may lead to a folder, out of the folder of the zones, or to a file that is no zone.
    except (KeyError, ValueError, OSError):
        raise TimetableError(
            f"there is no time zone {_shown(name)}: use a name such as 'Europe/Berlin' (zones come from the system's "
            "tzdata, or the Python package of that name)"
        ) from None


def _why(error: Exception) -> str:
    reason = str(error).lower()
    if "day-of-month" in reason:
        # The parser refuses the 31st of February as it refuses the 32nd of any month.
        return f"cannot be read or never ticks: {reason}, or none of its months has that day"
    return f"cannot be read: {reason}"


def _shown(text: str) -> str:
    return repr(visible(text[:100]))


def with_next_tick(schedule: dict[str, Any]) -> dict[str, Any]:
    """Compute the next tick of a schedule, a row of `crons`, of which the leader has not; or why it cannot."""
    if schedule["next_tick_at"] or schedule["error"] or schedule["paused"]:
        return schedule
    try:
        table = timetable(schedule["cron"], schedule["timezone"])
        return schedule | {"next_tick_at": table.after(schedule["changed_at"])}
    except TimetableError as error:
        return schedule | {"error": str(error)}
