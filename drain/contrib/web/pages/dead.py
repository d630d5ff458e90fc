"""Dead jobs in groups; retry and discard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from drain.contrib.web.bulk_actions import Act
from drain.contrib.web.charts import histogram
from drain.contrib.web.forms import Form, FormError
from drain.contrib.web.paging import ROWS, page_of, place_of
from drain.contrib.web.routing import page
from drain.contrib.web.shortening import shown_error
from drain.contrib.web.views import View
from drain.contrib.web.writes import Done, Question, Write, action
from drain.database.postgres import Connection
from drain.errors import DrainError, UnknownJobError
from drain.formatting import count, duration
from drain.read import dead_groups, queries
from drain.read.dead_groups import Group, Groups
from drain.tables import dead
from drain.tables.dead import FASTEST, SLOWEST, Selection

_GROUPS = 200
_LOGGED = 100


def _show(view: View) -> Mapping[str, Any]:
    with view.snapshot() as connection:
        found = dead_groups.read_groups(connection)
        now = queries.now(connection)
    times = [death.died_at for group in found.groups for death in group.deaths]
    return {
        "groups": found.groups[:_GROUPS],
        "groups_left_out": max(0, len(found.groups) - _GROUPS),
        "histogram": histogram(times, now) if times else None,
        **_bounds(found),
        "actions": view.site.bulk_actions.latest(),
        "now": now,
    }


def _show_group(view: View) -> Mapping[str, Any]:
    place = place_of(view, (int,))
    with view.snapshot() as connection:
        # First: a job that dies again after this snapshot is not the one on the page.
        now = queries.now(connection)
        found = dead_groups.read_groups(connection)
        group = _find(found, str(view.params["group"]))
        ids = [job_id for job_id in group.ids if place is None or job_id < place[0]]
        rows = dead_groups.listed(connection, ids[: ROWS + 1])
        job = queries.job(connection, group.latest.id)
    return {
        "group": group,
        "page": page_of(view, rows, lambda row: (row.id,)),
        "histogram": histogram([death.died_at for death in group.deaths], now),
        "error": shown_error(job["last_error"]) if job.get("last_error") else None,
        "rate": (SLOWEST, FASTEST),
        **_bounds(found),
        "now": now,
    }


def _bounds(found: Groups) -> dict[str, Any]:
    return {"looked_at": found.looked_at, "has_more": found.has_more}


def _find(found: Groups, name: str) -> Group:
    group = found.find(name)
    if group is None:
        raise UnknownJobError(
            "No dead job is in this group now: its jobs were retried or discarded, or are not among "
            f"the {found.looked_at:,} that were looked at."
        )
    return group


class _Chosen(NamedTuple):
    """Dead jobs that a form selects: one by one, or a whole group, which is acted on in slices.

    Attributes:
        seen_at: When the page was read. Jobs that died after it, again or for the first time, are left out.
    """

    ids: Sequence[int]
    seen_at: datetime
    words: str
    group: str = ""

    def selection(self, ids: Sequence[int]) -> Selection:
        return Selection(tuple(ids), died_by=self.seen_at)


def _chosen(connection: Connection, form: Form) -> _Chosen:
    seen_at = form.seen_at()
    if form.text("which") != "all":
        ids = sorted(set(form.numbers("id")))
        if not ids:
            raise FormError("no job is chosen: mark at least one")
        if any(abs(job_id) >= 2**63 for job_id in ids):
            raise FormError("the id of a job is a whole number below 2 to the power of 63")
        return _Chosen(ids, seen_at, "chosen dead jobs")
    group = _find(dead_groups.read_groups(connection), form.text("group"))
    ids = sorted(death.id for death in group.deaths if death.died_at <= seen_at)
    words = f"dead jobs of {group.latest.job_name} ({group.latest.where})"
    return _Chosen(ids, seen_at, words, group.digest)


def _per_second(form: Form) -> float | None:
    text = form.text("per_second")
    if not text:
        return None
    try:
        rate = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        rate = math.nan
    if not SLOWEST <= rate <= FASTEST:
        raise FormError(f"the rate is a number of jobs a second, from {SLOWEST:g} to {FASTEST:,.0f}")
    return rate


def _still_dead(connection: Connection, chosen: _Chosen) -> int:
    return dead.count(connection, chosen.selection(chosen.ids))


def _ask_to_retry(write: Write) -> Question:
    chosen, rate = _chosen(write.connection, write.form), _per_second(write.form)
    number = _still_dead(write.connection, chosen)
    pace = "at once"
    if rate is not None:
        pace = f"at {rate:g} a second: the last one comes due in {duration(max(0, number - 1) / rate)}"
    return Question(f"Retry {number:,} {chosen.words}, {pace}?", number, back=_back(write))


def _ask_to_discard(write: Write) -> Question:
    chosen = _chosen(write.connection, write.form)
    number = _still_dead(write.connection, chosen)
    text = f"Discard {number:,} {chosen.words}? They are gone then, with their arguments and errors."
    # Confirm even a single job: this cannot be undone.
    yes = f"Discard {count(number, 'job')} for ever"
    return Question(text, max(2, number) if number else 0, yes, back=_back(write))


def _back(write: Write) -> str:
    group = write.form.text("group")
    return write.view.url("dead_group", group=group) if group else write.view.url("dead")


def _retry(write: Write) -> Done:
    chosen, rate = _chosen(write.connection, write.form), _per_second(write.form)
    begun_at = queries.now(write.connection)

    def act(connection: Connection, ids: Sequence[int], before: int) -> int:
        first_at = begun_at + timedelta(seconds=before / rate) if rate else None
        return dead.revive(connection, chosen.selection(ids), rate, first_at)

    pace = "" if rate is None else f", at {rate:g} a second"
    return _act(write, chosen, "retry", act, f"staged again{pace}", per_second=rate)


def _discard(write: Write) -> Done:
    chosen = _chosen(write.connection, write.form)

    def act(connection: Connection, ids: Sequence[int], _before: int) -> int:
        return dead.discard(connection, chosen.selection(ids))

    return _act(write, chosen, "discard", act, "discarded")


def _act(write: Write, chosen: _Chosen, verb: str, act: Act, what: str, **fields: Any) -> Done:
    fields |= {"ids": list(chosen.ids[:_LOGGED])}
    if not chosen.group or not chosen.ids:
        return _done(write, chosen, verb, act(write.connection, chosen.ids, 0), what, fields)
    actions = write.view.site.bulk_actions
    action = actions.start(verb, chosen.group, chosen.words, write.who, chosen.ids, act)
    text = f"{verb} of {len(chosen.ids):,} {chosen.words} started"
    return Done(text, write.view.url("dead_action", action=action.name), fields)


def _done(write: Write, chosen: _Chosen, verb: str, number: int, what: str, fields: dict[str, Any]) -> Done:
    if not number:
        why = dead.why_left(write.connection, chosen.selection(chosen.ids), verb)
        raise DrainError(f"{why}; nothing was done")
    others = len(chosen.ids) - number
    rest = f"; {count(others, 'other')} had moved on" if others else ""
    return Done(f"{count(number, 'job')} {what}{rest}", write.view.url("dead"), fields | {"jobs": number})


ROUTES = [
    page("/dead", _show, name="dead", template="dead.html"),
    page("/dead/groups/{group}", _show_group, name="dead_group", template="dead_group.html"),
    action("/dead/retry", _retry, name="dead_retry", ask=_ask_to_retry),
    action("/dead/discard", _discard, name="dead_discard", ask=_ask_to_discard),
]
