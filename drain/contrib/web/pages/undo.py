"""Undo of changed rules, and of paused or resumed schedules.

The notice of a write carries the earlier value, signed. It is restored unless anything was changed since, even back.
"""

from __future__ import annotations

from typing import Any, LiteralString

from drain import queues
from drain.admission.options import as_options
from drain.admission.rules import Rules
from drain.contrib.web.writes import Done, Write, action
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.tables import crons

# A pause leaves the time of a schedule as it is, but between two pauses there is a resume, which sets it.
_RULES_CHANGED = "SELECT extract(epoch FROM changed_at)::text FROM queues WHERE queue = %s FOR UPDATE"
_SCHEDULE_CHANGED = "SELECT extract(epoch FROM changed_at)::text FROM crons WHERE name = %s FOR UPDATE"


def locked_rules(connection: Connection, queue: str) -> Rules:
    """Read and lock a queue's rules."""
    _changed(connection, _RULES_CHANGED, queue)
    return queues.show(connection, queue) or Rules(queue)


def of_rules(connection: Connection, before: Rules, after: Rules) -> dict[str, Any]:
    """Return values that undo a change; None stands for no rule."""
    old, new = as_options(before), as_options(after)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    at = _changed(connection, _RULES_CHANGED, before.queue)
    return {"queue": before.queue, "old": {name: old.get(name) for name in changed}, "changed": at}


def of_schedule(connection: Connection, name: str, *, is_paused: bool) -> dict[str, Any]:
    """Return values that undo a pause or resume."""
    at = _changed(connection, _SCHEDULE_CHANGED, name)
    return {"schedule": name, "paused": is_paused, "changed": at}


def _changed(connection: Connection, statement: LiteralString, name: str) -> str:
    """Lock a row, and return when it was changed; "" if missing."""
    row = connection.execute(statement, (name,)).fetchone()
    return str(row[0]) if row else ""


def _undo(write: Write) -> Done:
    value = write.view.site.access.unseal_undo(write.form.text("undo"))
    if value is None:
        raise DrainError("this undo is too old, or not of this page; nothing was changed")
    return _undo_schedule(write, value) if "schedule" in value else _undo_rules(write, value)


def _undo_rules(write: Write, value: dict[str, Any]) -> Done:
    queue, old = value["queue"], value["old"]
    if _changed(write.connection, _RULES_CHANGED, queue) != value["changed"]:
        raise DrainError(f"the rules of queue {queue} were changed since; nothing was undone")
    rules = queues.change(write.connection, queue, old)
    rules.require_tracked(write.view.site.settings.forward_queues)
    text = f"queue {queue} has its earlier rules again: {', '.join(old)}"
    return Done(text, write.view.url("queue", queue=queue), {"queue": queue, "rules": as_options(rules)})


def _undo_schedule(write: Write, value: dict[str, Any]) -> Done:
    name, was_paused = value["schedule"], value["paused"]
    change = crons.resume if was_paused else crons.pause
    is_same = _changed(write.connection, _SCHEDULE_CHANGED, name) == value["changed"]
    if not is_same or not change(write.connection, [name]):
        raise DrainError(f"schedule {name} was changed since; nothing was undone")
    text = f"schedule {name} is {'resumed' if was_paused else 'paused'} again"
    return Done(text, write.view.url("schedule", name=name), {"schedule": name})


ROUTES = [action("/undo", _undo, name="undo")]
