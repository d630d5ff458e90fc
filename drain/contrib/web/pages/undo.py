"""Undo of changed rules, and of paused or resumed schedules.

The notice of a write carries the earlier value, signed. It is restored unless changed since.
"""

from __future__ import annotations

from typing import Any

from drain import queues
from drain.admission.options import as_options
from drain.admission.rules import Rules
from drain.contrib.web.writes import Done, Write, action
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.tables import crons


def locked_rules(connection: Connection, queue: str) -> Rules:
    """Read a queue's rules, which no other transaction then changes."""
    connection.execute("SELECT FROM queues WHERE queue = %s FOR UPDATE", (queue,))
    return queues.show(connection, queue) or Rules(queue)


def of_rules(before: Rules, after: Rules) -> dict[str, Any]:
    """Return the values that undo a change of rules; None stands for no rule."""
    old, new = as_options(before), as_options(after)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return {
        "queue": before.queue,
        "old": {name: old.get(name) for name in changed},
        "new": {name: new.get(name) for name in changed},
    }


def of_schedule(name: str, *, is_paused: bool) -> dict[str, Any]:
    """Return the values that undo a pause or a resume."""
    return {"schedule": name, "paused": is_paused}


def _undo(write: Write) -> Done:
    value = write.view.site.access.unseal_undo(write.form.text("undo"))
    if value is None:
        raise DrainError("this undo is too old, or not of this page; nothing was changed")
    return _undo_schedule(write, value) if "schedule" in value else _undo_rules(write, value)


def _undo_rules(write: Write, value: dict[str, Any]) -> Done:
    queue, old, new = value["queue"], value["old"], value["new"]
    current = as_options(locked_rules(write.connection, queue))
    if any(current.get(name) != rule for name, rule in new.items()):
        raise DrainError(f"the rules of queue {queue} were changed since; nothing was undone")
    rules = queues.change(write.connection, queue, old)
    rules.require_tracked(write.view.site.settings.forward_queues)
    text = f"queue {queue} has its earlier rules again: {', '.join(old)}"
    return Done(text, write.view.url("queue", queue=queue), {"queue": queue, "rules": as_options(rules)})


def _undo_schedule(write: Write, value: dict[str, Any]) -> Done:
    name, was_paused = value["schedule"], value["paused"]
    change = crons.resume if was_paused else crons.pause
    if not change(write.connection, [name]):
        raise DrainError(f"schedule {name} was changed since; nothing was undone")
    text = f"schedule {name} is {'resumed' if was_paused else 'paused'} again"
    return Done(text, write.view.url("schedule", name=name), {"schedule": name})


ROUTES = [action("/undo", _undo, name="undo")]
