"""Schedules: pause, resume, run now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from drain.contrib.web.forms import require_storable
from drain.contrib.web.pages import undo
from drain.contrib.web.paging import ROWS, page_of, place_of
from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.contrib.web.writes import Done, Write, action
from drain.errors import DrainError
from drain.jobs.timetable import with_next_tick
from drain.read import queries
from drain.tables import crons

# A tick whose job is still not staged at this age is overdue.
_OVERDUE = timedelta(seconds=30)


class UnknownScheduleError(DrainError):
    """No schedule has this name."""


def _show(view: View) -> Mapping[str, Any]:
    place = place_of(view, (str,))
    with view.snapshot() as connection:
        rows = crons.page(connection, ROWS + 1, place[0] if place else None)
        now = queries.now(connection)
        leader = queries.leader(connection)
    schedules = [_described(row, now) for row in rows]
    return {
        "now": now,
        "has_leader": leader is not None,
        "page": page_of(view, schedules, lambda schedule: (schedule["name"],)),
    }


def _show_one(view: View) -> Mapping[str, Any]:
    # Not stripped: a name may begin with a blank.
    name = view.query.get("name", "")
    require_storable([name])
    with view.snapshot() as connection:
        row = crons.one(connection, name)
        now = queries.now(connection)
    if row is None:
        raise UnknownScheduleError(f"no schedule has the name {name!r:.300}")
    schedule = _described(row, now)
    return {"now": now, "schedule": schedule}


def _described(row: dict[str, Any], now: datetime) -> dict[str, Any]:
    schedule = with_next_tick(row)
    at: datetime | None = schedule["next_tick_at"]
    if schedule["paused"]:
        state, mark = "paused", "watch"
    elif schedule["error"]:
        state, mark = "no ticks", "bad"
    elif at is not None and at < now - _OVERDUE:
        state, mark = "overdue", "bad"
    else:
        state, mark = "on", "good"
    queue = schedule["options"].get("queue", "default") if isinstance(schedule["options"], dict) else "?"
    return schedule | {"state": state, "mark": mark, "queue": queue}


def _pause(write: Write) -> Done:
    name = _name(write)
    if not crons.pause(write.connection, [name]):
        raise _refusal(write, name, "is paused already")
    done = _done(write, f"schedule {name} is paused", name)
    return replace(done, undo=undo.of_schedule(write.connection, name, is_paused=True))


def _resume(write: Write) -> Done:
    name = _name(write)
    if not crons.resume(write.connection, [name]):
        raise _refusal(write, name, "is not paused")
    done = _done(write, f"schedule {name} is resumed, from its next tick on", name)
    return replace(done, undo=undo.of_schedule(write.connection, name, is_paused=False))


def _run(write: Write) -> Done:
    name = _name(write)
    job_id = crons.stage_now(write.connection, name)
    if job_id is None:
        raise _refusal(write, name, "")
    return _done(write, f"job {job_id} of schedule {name} is staged", name, jobs=1, job_id=job_id)


def _name(write: Write) -> str:
    return dict(reversed(write.form.fields)).get("name", "")


def _refusal(write: Write, name: str, otherwise: str) -> DrainError:
    if crons.one(write.connection, name) is None:
        return UnknownScheduleError(f"no schedule has the name {name!r:.300}")
    return DrainError(f"schedule {name} {otherwise}")


def _done(write: Write, text: str, name: str, **fields: Any) -> Done:
    return Done(text, write.view.url("schedule", name=name), {"schedule": name, **fields})


ROUTES = [
    page("/cron", _show, name="cron", template="cron.html", live="cron_live.html"),
    page("/cron/schedule", _show_one, name="schedule", template="schedule.html"),
    action("/cron/pause", _pause, name="cron_pause"),
    action("/cron/resume", _resume, name="cron_resume"),
    action("/cron/run", _run, name="cron_run"),
]
