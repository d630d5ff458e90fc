"""All queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from drain.contrib.web.history import STEP, STEPS
from drain.contrib.web.routing import page
from drain.contrib.web.sparklines import draw
from drain.contrib.web.views import View
from drain.database.postgres import Connection
from drain.read import capacity, queries, queue_overview, queues
from drain.read.queue import RATE_SECONDS, Queue
from drain.read.queue_overview import Number
from drain.read.queues import UP_TO

# Maximum age in seconds: for a visitor a little more than the poll interval; for the thread, shared by its pages.
_FRESH_SECONDS, _FRESH_FOR_THE_THREAD = 2.5, 0.5
# Seconds to count steps: for a visitor, and for the thread.
_OF_A_VISIT, _OF_THE_THREAD = 0.005, 0.25
CAUSES = {
    "scheduled": "scheduled for later",
    "paused": "paused",
    "limited": "behind a limit",
    "rate": "behind a rate",
    "list_full": "behind a full list",
    "due": "due",
    "queued": "for a worker",
    "retrying": "for the next attempt",
    "called_back": "called back by a pause",
}


@dataclass(slots=True)
class Glance:
    """One queue as the page shows it; `curve` has finished jobs by step."""

    name: str
    numbers: Queue = field(default_factory=Queue)
    curve: list[Number | None] = field(default_factory=list)

    @property
    def causes(self) -> dict[str, Number]:
        """Waiting jobs by cause."""
        waiting = self.numbers.waiting
        return {cause: self._number(cause, waiting[cause]) for cause in CAUSES if cause in waiting}

    @property
    def waiting(self) -> Number:
        """Waiting jobs, except scheduled ones."""
        return self._number("waits", self.numbers.waits)

    @property
    def running(self) -> Number:
        """Running jobs."""
        return self._number("running", self.numbers.running)

    @property
    def dead(self) -> Number:
        """Dead jobs."""
        return self._number("dead", self.numbers.dead)

    @property
    def finished(self) -> Number:
        """Jobs finished in the last minute."""
        number = round(self.numbers.per_second * RATE_SECONDS)
        return Number(number, number > UP_TO)

    @property
    def has_trouble(self) -> bool:
        """True if the queue is paused, failing, stalled, or without workers."""
        queue = self.numbers
        return queue.paused is not None or queue.failing or queue.stalled_seconds > 0 or queue.is_unattended

    def _number(self, name: str, number: int) -> Number:
        return Number(number, self.numbers.is_estimate(name))


@dataclass(frozen=True, slots=True)
class Measured:
    """Numbers of all queues, by the database's clock."""

    queues: dict[str, Glance]
    leader: dict[str, Any] | None
    now: datetime


def look(view: View) -> Measured:
    """Return all queues' numbers, possibly cached."""

    def measure_all() -> Measured:
        with view.snapshot() as connection:
            found = measure(view, connection)
        _add_workers(view, found.queues)
        return found

    seconds = _FRESH_FOR_THE_THREAD if view.is_thread else _FRESH_SECONDS
    return view.site.memory.recall("queues", seconds, measure_all)


def measure(view: View, connection: Connection) -> Measured:
    """Measure all queues."""
    now = queries.now(connection)
    found = queues.read(connection)
    finishing = queue_overview.finishing_queues(connection, now - STEPS * STEP)
    history = view.site.history
    history.fill(connection, finishing, now, _OF_THE_THREAD if view.is_thread else _OF_A_VISIT)
    glances = {
        name: Glance(name, found.get(name) or Queue(), history.curve(name, now) if name in finishing else [])
        for name in sorted({*found, *finishing})
    }
    leader = queries.leader(connection)
    led = {"name": leader["name"], "since": datetime.fromisoformat(leader["since"])} if leader else None
    return Measured(glances, led, now)


def _add_workers(view: View, found: Mapping[str, Glance]) -> None:
    crews = view.site.redis.ask(lambda redis: redis.crews(list(found))) or {}
    capacity.add_workers({name: glance.numbers for name, glance in found.items()}, crews)


def _show(view: View) -> Mapping[str, Any]:
    measured = look(view)
    return {
        "queues": list(measured.queues.values()),
        "leader": measured.leader,
        "now": measured.now,
        "words": CAUSES,
        "draw": draw,
        "redis_problem": view.site.redis.problem,
    }


ROUTES = [page("/", _show, name="overview", template="overview.html", live="overview_live.html")]
