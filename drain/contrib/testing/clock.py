"""Virtual time of a test: advancing shifts the rows' times back.

In a transaction `now()` stands still, and `clock_timestamp()`, as in rows, does not. The leader compares with the
former, so rows are shifted by the difference while its statements run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice

from drain.contrib.testing.nested import LeaderConnection
from drain.errors import HarnessError
from drain.jobs import schedules
from drain.jobs.timetable import timetable
from drain.tables import crons, time_travel
from drain.tables.crons import DueSchedule, Ticks

_MOST_TICKS = 10_000
_MOST_SCHEDULES = 1000
_LONGEST = timedelta(days=3660)


@contextmanager
def at_present(connection: LeaderConnection) -> Iterator[timedelta]:
    """Shift rows due by the clock to be due at the transaction's start; yield the difference.

    Needs a savepoint: if the block raises, nothing is shifted back.
    """
    began, now = time_travel.clock(connection)
    time_travel.shift(connection, now - began)
    yield now - began
    time_travel.shift(connection, began - now)


def checked(by: timedelta) -> timedelta:
    """Check a duration; HarnessError if negative or too long."""
    if not timedelta() <= by <= _LONGEST:
        raise HarnessError(f"time can advance by 0 to {_LONGEST.days} days, not by {by}")
    return by


def advance(connection: LeaderConnection, by: timedelta, before: timedelta) -> None:
    """Let time pass, after `before` in earlier calls, and stage a job per tick of a schedule."""
    with connection.transaction():
        crons.declare(connection, schedules.declared())
        time_travel.shift(connection, by)
        time_travel.shift_rest(connection, by)
        with at_present(connection) as lag:
            _tick(connection, before + by + lag)


def _tick(connection: LeaderConnection, offset: timedelta) -> None:
    """Stage jobs of ticks as if a leader had run throughout; `tick` in their context is virtual time too."""
    due = crons.read_due(connection, _MOST_SCHEDULES)
    if not due:
        return
    moved = [_moved(schedule, offset) for schedule in due]
    since = time_travel.highest_id(connection)
    ids = crons.stage(connection, moved)
    time_travel.shift_staged(connection, time_travel.staged_since(connection, since, ids), offset)
    crons.move_on(connection, [_back(each, offset) for each in moved], ids)


def _moved(schedule: DueSchedule, offset: timedelta) -> Ticks:
    table = timetable(schedule.cron, schedule.timezone)
    now = schedule.now + offset
    planned = schedule.next_tick_at
    first = table.after(schedule.changed_at + offset) if planned is None else planned + offset
    if first > now:
        return Ticks(schedule.name, [], first)
    ticks: Sequence[datetime] = list(islice(table.until(first, now), _MOST_TICKS + 1))
    if len(ticks) > _MOST_TICKS:
        raise HarnessError(
            f"schedule {schedule.name} ticks more than {_MOST_TICKS:,} times in this time: advance by less, or pause it"
        )
    return Ticks(schedule.name, ticks, table.after(ticks[-1]))


def _back(ticks: Ticks, offset: timedelta) -> Ticks:
    return Ticks(ticks.name, [tick - offset for tick in ticks.ticks], ticks.next - offset)
