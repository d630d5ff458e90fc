"""All queues at a glance: what waits and why, how fast it goes, who works, and what fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from drain.database.postgres import Connection
from drain.tables import causes, glances, lanes, pauses, queries, rules, waiting
from drain.tables.glances import Finished, Step
from drain.tables.pauses import Pause
from drain.web.history import STEP, STEPS
from drain.web.routing import page
from drain.web.sparklines import draw
from drain.web.views import View

# Upper bound of the jobs of one queue and cause that are counted.
UP_TO = 10_000
# Time over which the rate is measured.
_MINUTE = timedelta(minutes=1)
# Time in which steps of the curves are counted, in seconds: for a visitor who waits, and for the thread.
_OF_A_VISIT, _OF_THE_THREAD = 0.01, 0.25
_NONE = Finished(0, is_estimate=False)
# Words of the causes for which jobs wait.
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
    """Numbers of one queue.

    Attributes:
        name: Name of the queue.
        causes: Number of waiting jobs by cause.
        running: Number of jobs that workers have claimed.
        oldest_seconds: Time for which the oldest job has been due, or has waited for a worker.
        dead: Number of dead jobs among the latest ones of all queues.
        failing: Five of its jobs have failed since its last finish.
        paused: Pause of the whole queue; None without one.
        has_rules: There are rules of the queue.
        finished: Number of jobs that ended in the last minute.
        workers: Number of live workers; None if Redis is not known.
        curve: Jobs that ended, by step.
    """

    name: str
    causes: Mapping[str, int] = field(default_factory=dict)
    running: int = 0
    oldest_seconds: float | None = None
    dead: int = 0
    failing: bool = False
    paused: Pause | None = None
    has_rules: bool = False
    finished: Finished = _NONE
    workers: int | None = None
    curve: list[Finished | None] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Number of the jobs that wait for anything but their time."""
        return sum(number for cause, number in self.causes.items() if cause != "scheduled")

    @property
    def is_counted(self) -> bool:
        """False if some cause has as many jobs as are counted."""
        return all(number < UP_TO for number in self.causes.values())

    @property
    def is_unattended(self) -> bool:
        """True if jobs wait and no worker runs them."""
        return self.workers == 0 and self.waiting > 0


def measure(view: View, connection: Connection, queue: str | None = None) -> tuple[list[Glance], datetime]:
    """Measure all queues, and return the time of the database's clock.

    Args:
        view: View of the page.
        connection: In a snapshot.
        queue: The one whose curve is wanted; None for all.
    """
    now = queries.now(connection)
    found = causes.count_waiting(connection, UP_TO)
    running = glances.count_running(connection, UP_TO)
    oldest = _later(lanes.oldest_due_seconds(connection), glances.oldest_queued_seconds(connection))
    dead = glances.count_latest_dead(connection, UP_TO)
    failing = {each.queue for each in waiting.retrying_queues(connection) if each.failing}
    held = {
        pause.queue: pause
        for pause in reversed(pauses.longest_first(pauses.read(connection)))
        if pause.queue is not None and pause.job_name is None and pause.key is None
    }
    ruled = rules.read(connection)
    finishing = glances.finishing_queues(connection, now - STEPS * STEP)
    names = glances.known(found, running, oldest, dead, held, ruled, finishing)
    lately = [Step(queue, now - _MINUTE) for queue in finishing]
    rates = dict(zip(finishing, glances.count_finished(connection, lately, _MINUTE), strict=True))
    history = view.site.history
    curves = [name for name in finishing if queue in (None, name)]
    history.fill(connection, curves, now, _OF_THE_THREAD if view.is_thread else _OF_A_VISIT)
    return [
        Glance(
            name,
            found.get(name, {}),
            running.get(name, 0),
            oldest.get(name),
            dead.get(name, 0),
            name in failing,
            held.get(name),
            name in ruled,
            rates.get(name, _NONE),
            curve=history.curve(name, now) if name in rates else [],
        )
        for name in names
    ], now


def _later(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {queue: max(one.get(queue, 0.0), other.get(queue, 0.0)) for queue in {*one, *other}}


def add_workers(view: View, found: list[Glance]) -> None:
    """Fill in the workers, if Redis is known."""
    names = [glance.name for glance in found]
    workers = view.site.redis.ask(lambda redis: redis.workers(names)) or {}
    for glance in found:
        glance.workers = workers.get(glance.name)


def _show(view: View) -> Mapping[str, Any]:
    with view.snapshot() as connection:
        found, now = measure(view, connection)
        leader = queries.leader(connection)
    add_workers(view, found)
    return {
        "queues": found,
        "leader": leader and {**leader, "since": datetime.fromisoformat(leader["since"])},
        "now": now,
        "up_to": UP_TO,
        "words": CAUSES,
        "draw": draw,
        "redis_problem": view.site.redis.problem,
    }


ROUTES = [page("/", _show, name="overview", template="overview.html", live="overview_live.html")]
