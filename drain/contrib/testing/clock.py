"""Virtual time of a test: the times of rows are made earlier, since the clock of a transaction stands still.

In a transaction `now()` is the time at which it began, and `clock_timestamp()` goes on. Rows hold times of the second
kind. The leader compares with the first kind: so while its statements run, all rows are shifted by the difference.
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

# Upper bound of the ticks of one schedule in one advance, and of the schedules that are read together.
_MOST_TICKS = 10_000
_MOST_SCHEDULES = 1000
_LONGEST = timedelta(days=3660)


@contextmanager
def at_present(connection: LeaderConnection) -> Iterator[timedelta]:
    """Shift all rows so that what is due by the clock is due at the beginning of the transaction, during the block.

    To be called within a savepoint: if the block raises, nothing is shifted back. Yields the difference.
    """
    began, now = time_travel.clock(connection)
    time_travel.shift(connection, now - began)
    yield now - began
    time_travel.shift(connection, began - now)


def checked(by: timedelta) -> timedelta:
    """Return a time by which a test may advance.

    Raises:
        HarnessError: It is negative, or too long.
    """
    if not timedelta() <= by <= _LONGEST:
        raise HarnessError(f"time can advance by 0 to {_LONGEST.days} days, not by {by}")
    return by


def advance(connection: LeaderConnection, by: timedelta, before: timedelta) -> None:
    """Let time pass: what waits comes nearer, and a job is staged for each tick of a schedule in between.

    Args:
        connection: Connection of the test.
        by: Time that passes.
        before: Time by which the test has advanced before.
    """
    with connection.transaction():
        crons.declare(connection, schedules.declared())
        time_travel.shift(connection, by)
        time_travel.shift_rest(connection, by)
        with at_present(connection) as lag:
            _tick(connection, before + by + lag)


def _tick(connection: LeaderConnection, offset: timedelta) -> None:
    """Stage the jobs of ticks as a leader would have done that was there all the time.

    Ticks are those of the calendar of the virtual time, and so is the `tick` in the context of the job.
    """
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
