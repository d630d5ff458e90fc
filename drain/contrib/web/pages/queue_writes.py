"""Writes to a queue: pause, resume, and rules."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from drain import formatting, queues
from drain.admission.options import as_options, with_options
from drain.admission.rules import Rules
from drain.contrib.web.forms import FormError
from drain.contrib.web.pages import overview, rule_effects, undo
from drain.contrib.web.pages.queue import TITLES_OF_RULES
from drain.contrib.web.writes import Done, Question, Write, action
from drain.errors import ConfigError
from drain.formatting import visible
from drain.read import queue_overview

# Upper bound of counted jobs.
_UP_TO = 10_000
_LARGEST = 2**31 - 1
_TEXTS = ("rate", "rate_per_key")
_NUMBERS = ("running", "running_per_key", "burst")
_FLAGS = ("fair", "ordered")
# Rules that are absent unless they differ from these.
_WITHOUT: dict[str, Any] = dict.fromkeys(_FLAGS, False) | {"on_dead": "hold", "weights": {}}


def _names(write: Write) -> dict[str, str | None]:
    form = write.form.as_dict()
    return {
        "queue": form.get("queue", write.view.params["queue"]) or None,
        "job": form.get("job") or None,
        "key": form.get("key") or None,
    }


def _words(names: dict[str, str | None]) -> str:
    return visible(" ".join(f"{kind} {name}" for kind, name in names.items() if name))


def _ask_to_resume(write: Write) -> Question:
    queue = write.view.params["queue"]
    with write.view.snapshot() as connection:
        number = queue_overview.count_of_queue(connection, queue, _UP_TO)
    more = " or more" if number == _UP_TO else ""
    what = _words(_names(write))
    text = f"Resume {what}? {formatting.count(number, 'job')}{more} of queue {queue} wait now."
    return Question(text, number, f"Yes, resume {what}")


def _preview_rules(write: Write) -> Question:
    queue = write.view.params["queue"]
    before = queues.show(write.connection, queue) or Rules(queue)
    after = with_options(before, _changes(write))
    after.require_tracked(write.view.site.settings.forward_queues)
    glance = overview.look(write.view).queues.get(queue) or overview.Glance(queue)
    if not (changes := rule_effects.describe(before, after, glance.numbers)):
        raise FormError(f"queue {queue} has these rules already")
    _require_current(write, before)
    back = write.view.url("queue", queue=queue)
    # More than one job, so that the preview of an empty queue is shown too.
    return Question(f"New rules of queue {queue}:", 2, "Apply", changes, back)


def _pause(write: Write) -> Done:
    names = _names(write)
    lasts = write.form.text("lasts")
    # PostgreSQL knows only the role of `drain web`, so record the user.
    reason = f"{write.form.text('reason') or 'paused on the page'} ({write.who})"
    try:
        until = formatting.seconds(lasts) if lasts else None
    except ValueError as error:
        raise FormError(str(error)) from None
    queues.pause(
        write.connection, names["queue"], job=names["job"], key=names["key"], until=until, reason=reason
    )
    return _done(write, f"paused: {_words(names)}")


def _resume(write: Write) -> Done:
    names = _names(write)
    if not queues.resume(write.connection, names["queue"], job=names["job"], key=names["key"]):
        raise ConfigError(f"not paused: {_words(names)}")
    return _done(write, f"resumed: {_words(names)}")


def _set_rules(write: Write) -> Done:
    queue = write.view.params["queue"]
    changes = _changes(write)
    before = undo.locked_rules(write.connection, queue)
    _require_current(write, before)
    rules = queues.change(write.connection, queue, changes)
    rules.require_tracked(write.view.site.settings.forward_queues)
    done = _done(write, f"queue {queue} has new rules: {', '.join(changes)}", {"rules": as_options(rules)})
    return replace(done, undo=undo.of_rules(write.connection, before, rules))


def _require_current(write: Write, before: Rules) -> None:
    was, now = _was(write), as_options(before)
    for name in _changes(write):
        if was.get(name, _WITHOUT.get(name)) != now.get(name, _WITHOUT.get(name)):
            title = TITLES_OF_RULES[name]
            raise FormError(
                f"{title} of queue {before.queue} was changed since the form was loaded: load it again"
            )


def _was(write: Write) -> dict[str, Any]:
    try:
        was = json.loads(write.form.text("was") or "{}")
    except (ValueError, RecursionError):
        was = None
    if not isinstance(was, dict):
        raise FormError("the form cannot be read")
    return was


def _changes(write: Write) -> dict[str, Any]:
    """Return only the rules changed in the form: others may have changed the rest."""
    was = _was(write)
    given: dict[str, Any] = {name: write.form.text(name) or None for name in _TEXTS}
    given |= {name: _number(write, name) for name in _NUMBERS}
    given |= {name: write.form.text(name) == "yes" for name in _FLAGS}
    given["aging"] = _seconds(write.form.text("aging"))
    given["weights"] = _weights(write.form.text("weights"))
    if given["ordered"]:
        given["on_dead"] = write.form.text("on_dead") or "hold"
    changes = {name: value for name, value in given.items() if value != was.get(name, _WITHOUT.get(name))}
    if not changes:
        raise FormError("no rule is different")
    return changes


def _number(write: Write, name: str) -> int | None:
    number = next(iter(write.form.numbers(name)), None) if write.form.text(name) else None
    if number is not None and abs(number) > _LARGEST:
        raise FormError(f"{name} is a number up to {_LARGEST:,}")
    return number


def _seconds(text: str) -> float | None:
    try:
        return formatting.seconds(text) if text else None
    except ValueError as error:
        raise FormError(str(error)) from None


def _weights(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for line in text.splitlines():
        key, _, number = line.strip().rpartition("=")
        try:
            weights[key.strip()] = float(number) if "." in number else int(number)
        except ValueError:
            raise FormError("a weight is a line such as acme=3") from None
    return weights


def _done(write: Write, text: str, fields: dict[str, Any] | None = None) -> Done:
    return Done(text, write.view.url("queue", queue=write.view.params["queue"]), fields or {})


ROUTES = [
    # Unconfirmed: the button that ends it takes its place.
    action("/queues/{queue}/pause", _pause, name="queue_pause"),
    action("/queues/{queue}/resume", _resume, name="queue_resume", ask=_ask_to_resume),
    action("/queues/{queue}/rules", _set_rules, name="queue_rules", ask=_preview_rules),
]
