"""One queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from drain import queues
from drain.admission.options import OPTIONS, as_options
from drain.admission.rules import Rules
from drain.contrib.web import charts
from drain.contrib.web.charts import Series
from drain.contrib.web.forms import FormError, require_storable
from drain.contrib.web.history import STEP, History
from drain.contrib.web.pages import overview
from drain.contrib.web.paging import ROWS, page_of, place_of
from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.database.postgres import Connection
from drain.read import causes, queue_overview
from drain.tables import keyed, lanes, pauses as paused
from drain.tables.lanes import Head, Lane
from drain.tables.pauses import Pause, Pauses
from drain.tables.staged import START, DueJob

TITLES_OF_RULES = {
    "running": "Maximum running jobs",
    "running_per_key": "Maximum running jobs per key",
    "rate": "Maximum start rate",
    "rate_per_key": "Maximum start rate per key",
    "burst": "Burst: starts at once after an idle period",
    "fair": "Fair: keys take turns",
    "weights": "Turns per key",
    "ordered": "Ordered: one job per key at a time, by id",
    "on_dead": "When a job of an ordered key is dead",
    "aging": "Waiting time worth one step of priority",
}
_FEW = 10
# Upper bound of counted jobs of a key.
_KEY_UP_TO = 1_000


class KeyNumbers(NamedTuple):
    """Numbers of one key: due jobs, and delivered or running jobs."""

    key: str
    due: int
    running: int


class Next(NamedTuple):
    """Due job, and whether a pause holds it."""

    job: DueJob
    is_paused: bool


def _queue_of(view: View) -> str:
    queue = str(view.params["queue"])
    require_storable([queue])
    return queue


def _show(view: View) -> Mapping[str, Any]:
    queue = _queue_of(view)
    measured = overview.look(view)
    with view.snapshot() as connection:
        rules = queues.show(connection, queue) or Rules(queue)
        held = [each for each in paused.read(connection) if each.queue in (None, queue)]
        following = read_next(connection, queue, START, _FEW)
        keys = read_keys(connection, queue, "", _FEW + 1)
    glance = measured.queues.get(queue) or overview.Glance(queue)
    steps = History.steps(measured.now)
    listed = view.site.redis.ask(lambda redis: redis.depth(queue))
    return {
        "queue": queue,
        "glance": glance,
        "chart": charts.stacked([Series("completed", "completed", glance.curve)], steps[0], steps[-1] + STEP)
        if glance.curve
        else "",
        "listed": listed,
        "rules": as_options(rules),
        "all_rules": list(OPTIONS),
        "titles_of_rules": TITLES_OF_RULES,
        "key_limit": rules.running_per_key,
        "pauses": held,
        "name_of": name_of,
        "next": following,
        "keys": keys[:_FEW],
        "has_more_keys": len(keys) > _FEW,
        "leader": measured.leader,
        "now": measured.now,
        "key_up_to": _KEY_UP_TO,
        "words": causes.CAUSES,
        "spark": charts.spark,
        "meter": charts.meter,
        "redis_problem": view.site.redis.problem,
    }


def _show_next(view: View) -> Mapping[str, Any]:
    queue = _queue_of(view)
    place = place_of(view, (int, int))
    # Beyond PostgreSQL's integer.
    if place and abs(place[0]) >= 2**31:
        raise FormError("the address is not a page of this list: start from the first page")
    with view.snapshot() as connection:
        rows = read_next(connection, queue, (place[0], place[1]) if place else START, ROWS + 1)
    return {"queue": queue, "page": page_of(view, rows, lambda row: row.job.place)}


def _show_keys(view: View) -> Mapping[str, Any]:
    queue = _queue_of(view)
    place = place_of(view, (str,))
    with view.snapshot() as connection:
        rows = read_keys(connection, queue, place[0] if place else "", ROWS + 1)
    return {
        "queue": queue,
        "page": page_of(view, rows, lambda row: [row.key]),
        "key_up_to": _KEY_UP_TO,
    }


def read_next(connection: Connection, queue: str, after: tuple[int, int], limit: int) -> list[Next]:
    """Read a queue's due jobs after a place, by priority and id."""
    heads = [Head(Lane(kind, queue), limit, after) for kind in lanes.KINDS]
    found = sorted(
        (job for rows in lanes.read_due(connection, heads).values() for job in rows),
        key=lambda job: job.place,
    )
    pauses = Pauses(paused.read(connection))
    return [Next(job, pauses.applies(queue, job.job_name, job.key)) for job in found[:limit]]


def read_keys(connection: Connection, queue: str, after: str, limit: int) -> list[KeyNumbers]:
    """Read the keys with due jobs after a key."""
    heads = keyed.heads_of_keys(connection, queue, after, limit, keyed.Paused())
    keys = [head.key for head in heads if head.key is not None]
    due = queue_overview.count_keys(connection, queue, keys, _KEY_UP_TO)
    running = Counter(job.key for job in causes.read_running(connection, queue)) if keys else Counter()
    return [KeyNumbers(key, due.get(key, 0), running[key]) for key in keys]


def name_of(pause: Pause) -> str:
    """Return a pause's scope in words."""
    names = (("queue", pause.queue), ("job", pause.job_name), ("key", pause.key))
    return " ".join(f"{kind} {name}" for kind, name in names if name is not None)


ROUTES = [
    page("/queues/{queue}", _show, name="queue", template="queue.html", live="queue_live.html"),
    page("/queues/{queue}/next", _show_next, name="queue_next", template="queue_next.html"),
    page("/queues/{queue}/keys", _show_keys, name="queue_keys", template="queue_keys.html"),
]
