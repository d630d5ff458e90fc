"""Ticks of schedules: a transaction stages jobs and moves schedules on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from time import monotonic

import psycopg
from psycopg import errors

from drain import metrics
from drain.database import postgres
from drain.database.postgres import Connection, fails_for_any_row
from drain.enqueuer.chores import Chore
from drain.failpoints import FailurePoint, failpoint
from drain.formatting import clock, visible
from drain.jobs.timetable import Timetable, TimetableError, timetable
from drain.tables import crons
from drain.tables.crons import DueSchedule, Ticks

log = logging.getLogger(__name__)

# Schedules and jobs per transaction; more ticks take several, with batches in between.
TICKS_PER_TRANSACTION = 1000
# Older ticks count as missed; younger ones outlast a change of leaders.
MISSED_AFTER = timedelta(seconds=60)


class Ticker(Chore):
    """Stages jobs of due ticks; counts schedules."""

    pause_seconds = 0.0
    # A migration, or a lock on the whole table.
    in_use = (errors.LockNotAvailable, errors.QueryCanceled, errors.DeadlockDetected)
    refused_text = "schedules stage no jobs"
    refused_event = "ticks_refused"

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._next_tick = -inf
        self._has_begun = False

    def run_once(self) -> int:
        """Move on up to 1,000 due schedules; return how many."""
        self._next_tick = inf
        # No pacer: each look is one index look-up.
        return self._try_to_work()

    def seconds_to_next(self) -> float:
        """Seconds to the next tick, at the latest look; infinity if unknown."""
        return max(0.0, self._next_tick - monotonic())

    def _work(self) -> int:
        if not self._has_begun:
            crons.try_again(self._connection)
            self._has_begun = True
        seconds = crons.seconds_to_next_tick(self._connection)
        if seconds is None or seconds > 0:
            self._next_tick = inf if seconds is None else monotonic() + seconds
            return 0
        done = self._move_on()
        if done:
            # More may be due.
            self._next_tick = -inf
        return done

    def _move_on(self) -> int:
        due: list[DueSchedule] = []
        try:
            return self._transact(due)
        except (psycopg.Error, TimetableError) as error:
            if not _is_of_one_schedule(error):
                raise
        # One by one, so that a bad one never blocks the others.
        return sum(self._move_on_alone(schedule.name) for schedule in due)

    def _move_on_alone(self, name: str) -> int:
        try:
            return self._transact([], [name])
        except (psycopg.Error, TimetableError) as error:
            if not _is_of_one_schedule(error):
                raise
            reason = str(error).partition("\n")[0]
        crons.refuse(self._connection, name, reason)
        log.warning(
            "schedule %s stages no jobs until it is changed: %s",
            visible(name),
            visible(reason),
            extra={"event": "schedule_refused", "schedule": name},
        )
        return 1

    def _transact(self, due: list[DueSchedule], names: Sequence[str] | None = None) -> int:
        """Move schedules on; add those read to `due`."""
        with postgres.transaction(self._connection, psycopg.IsolationLevel.READ_COMMITTED):
            due += crons.read_due(self._connection, TICKS_PER_TRANSACTION, names)
            if not (moved := _moves(due)):
                return 0
            ids = crons.stage(self._connection, moved)
            failpoint(FailurePoint.TICKED)
            crons.move_on(self._connection, moved, ids)
        failpoint(FailurePoint.TICKS_COMMITTED)
        metrics.CRON_TICKS.inc(sum(len(each.ticks) for each in moved))
        return len(moved)


def _is_of_one_schedule(error: psycopg.Error | TimetableError) -> bool:
    return isinstance(error, TimetableError) or not fails_for_any_row(error)


def _moves(due: Sequence[DueSchedule]) -> list[Ticks]:
    room = TICKS_PER_TRANSACTION
    moved = []
    for schedule in due:
        if not room:
            break
        moved.append(_move(schedule, room))
        room -= len(moved[-1].ticks)
    return moved


def _move(schedule: DueSchedule, room: int) -> Ticks:
    table = timetable(schedule.cron, schedule.timezone)
    first = schedule.next_tick_at or table.after(schedule.changed_at)
    if first > schedule.now:
        return Ticks(schedule.name, [], first)
    ticks = _chosen(table, first, schedule, room)
    if ticks[0] != first or schedule.now - first > MISSED_AFTER:
        _report_missed(schedule, first, ticks)
    staged = ticks if schedule.missed != "none" or schedule.now - ticks[-1] <= MISSED_AFTER else []
    return Ticks(schedule.name, staged, table.after(ticks[-1]))


def _chosen(table: Timetable, first: datetime, schedule: DueSchedule, room: int) -> list[datetime]:
    if schedule.missed == "all" or schedule.now - first < MISSED_AFTER:
        return list(islice(table.until(first, schedule.now), room))
    return [table.latest(first, schedule.now)]


def _report_missed(schedule: DueSchedule, first: datetime, ticks: Sequence[datetime]) -> None:
    log.warning(
        "schedule %s missed its ticks from %s to %s; missed=%s",
        visible(schedule.name),
        clock(first),
        clock(ticks[-1]),
        schedule.missed,
        extra={"event": "ticks_missed", "schedule": schedule.name},
    )
