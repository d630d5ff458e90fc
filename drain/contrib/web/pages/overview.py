"""All queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from markupsafe import Markup

from drain.contrib.web import charts
from drain.contrib.web.charts import Series
from drain.contrib.web.history import STEP, STEPS, History
from drain.contrib.web.levels import Level
from drain.contrib.web.routing import of_all_pages, page
from drain.contrib.web.site import Site
from drain.contrib.web.views import View
from drain.database.postgres import Connection
from drain.read import capacity, queries, queue_overview, queues
from drain.read.causes import CAUSES
from drain.read.queue import Queue
from drain.read.queue_overview import Latency, Number
from drain.read.queues import UP_TO

# Maximum age in seconds: for a visitor a little more than the poll interval; for the thread, shared by its pages.
_FRESH_SECONDS, _FRESH_FOR_THE_THREAD = 2.5, 0.5
# Seconds to count steps: for a visitor, and for the thread.
_OF_A_VISIT, _OF_THE_THREAD = 0.005, 0.25
# Deaths and latency are cached this long.
_SLOW_FRESH_SECONDS = 10.0


@dataclass(slots=True)
class Glance:
    """One queue; `curve` has finished jobs by step."""

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
        """Finished jobs of the last minute."""
        number = self.numbers.per_minute
        return Number(number, number > UP_TO)

    @property
    def clears_in_seconds(self) -> float | None:
        """Seconds to finish the waiting jobs at the last minute's rate, without arrivals; None if unknown."""
        waits = self.numbers.waits - self.numbers.waiting.get("paused", 0)
        return waits / self.numbers.per_second if waits and self.numbers.per_second else None

    @property
    def limit(self) -> int | None:
        """Maximum of running jobs."""
        return self.numbers.rules.running if self.numbers.rules else None

    @property
    def has_trouble(self) -> bool:
        """True if the queue is paused, held, failing, stalled, or without workers."""
        return bool(self.numbers.troubles)

    def _number(self, name: str, number: int) -> Number:
        return Number(number, self.numbers.is_estimate(name))


@dataclass(frozen=True, slots=True)
class Measured:
    """Numbers of all queues, by the database's clock."""

    queues: dict[str, Glance]
    leader: dict[str, Any] | None
    now: datetime

    def total(self, name: str) -> Number:
        """Sum a number of all queues."""
        numbers = [getattr(glance, name) for glance in self.queues.values()]
        return Number(
            sum(each.number for each in numbers), any(each.is_estimate for each in numbers if each.number)
        )

    @property
    def level(self) -> Level:
        """Numbers to sample."""
        return Level(self.total("waiting"), self.total("running"))


class Lately(NamedTuple):
    """Deaths by step, and latency."""

    died: list[Number | None]
    latency: Latency


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


def _sample(site: Site) -> Level:
    with site.sessions.snapshot() as connection:
        found = {name: Glance(name, numbers) for name, numbers in queues.read(connection).items()}
        return Measured(found, None, queries.now(connection)).level


def _look_at_the_past(view: View, measured: Measured) -> Lately:
    def read() -> Lately:
        steps = History.steps(measured.now)
        with view.snapshot() as connection:
            died = queue_overview.count_died(connection, steps[0], steps[-1] + STEP, STEP)
            busy = [name for name, glance in measured.queues.items() if glance.curve]
            # Among the dead jobs staged last.
            is_bounded = measured.total("dead").number > queue_overview.DIED_UP_TO
            curve: list[Number | None] = [Number(died.get(step, 0), is_bounded) for step in steps]
            return Lately(curve, queue_overview.latency(connection, busy))

    return view.site.memory.recall("lately", _SLOW_FRESH_SECONDS, read)


def _add_workers(view: View, found: Mapping[str, Glance]) -> None:
    crews = view.site.redis.ask(lambda redis: redis.crews(list(found))) or {}
    capacity.add_workers({name: glance.numbers for name, glance in found.items()}, crews)


def _show(view: View) -> Mapping[str, Any]:
    """Measure for the thread; visitors share one fresh rendering."""
    if view.is_thread:
        return _measured(view)

    def render() -> Markup:
        values = {**of_all_pages(view.site, view.root), **_measured(view)}
        return Markup(view.site.templates.render("overview_live.html", values))  # noqa: S704

    return {"rendered": view.site.memory.recall(f"overview of {view.root}", _FRESH_SECONDS, render)}


def _measured(view: View) -> Mapping[str, Any]:
    measured = look(view)
    lately = _look_at_the_past(view, measured)
    view.site.levels.visit(measured.level, partial(_sample, view.site))
    levels = view.site.levels.curve()
    glances = list(measured.queues.values())
    completed = charts.total([glance.curve for glance in glances if glance.curve])
    series = [
        Series("completed", "completed", completed or [Number(0)] * STEPS),
        Series("failures", "dead", lately.died),
    ]
    steps = History.steps(measured.now)
    crew = [glance.numbers for glance in glances if glance.numbers.workers]
    return {
        "queues": sorted(glances, key=lambda glance: not glance.has_trouble),
        "total": measured.total,
        "oldest_seconds": max((glance.numbers.oldest_seconds for glance in glances), default=0.0),
        "retrying": sum(glance.numbers.retrying for glance in glances),
        "scheduled": sum(glance.numbers.scheduled for glance in glances),
        "blocked": sum(glance.numbers.blocked for glance in glances),
        "parked": sum(glance.numbers.parked for glance in glances),
        # Steps of a page just opened are still being counted.
        "is_counting": sum(each is None for each in completed) > STEPS / 2,
        "is_idle": not any(each.number for curve in series for each in curve.numbers if each),
        "series": series,
        "chart": charts.stacked(series, steps[0], steps[-1] + STEP),
        "latency": lately.latency,
        "has_workers": bool(crew),
        "leader": measured.leader,
        "now": measured.now,
        "words": CAUSES,
        "spark": charts.spark,
        "levels": {
            name: charts.level([each and getattr(each, name) for each in levels], name)
            for name in Level._fields
        },
        "meter": charts.meter,
        "redis_problem": view.site.redis.problem,
    }


ROUTES = [page("/", _show, name="overview", template="overview.html", live="overview_live.html")]
