"""All queues at a glance: what waits and why, how fast it goes, who works, and what fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from drain import capacity
from drain.contrib.web.history import STEP, STEPS
from drain.contrib.web.routing import page
from drain.contrib.web.sparklines import draw
from drain.contrib.web.views import View
from drain.database.postgres import Connection
from drain.read import queries, queue_overview, stalls, wait_counts
from drain.read.queue_overview import NONE, Number, Step
from drain.tables import lanes, pauses, rules, waiting
from drain.tables.pauses import Pause

# Number of due rows that are looked at for the causes, of all lanes together, and at least of each.
_LOOKED_AT, _OF_A_LANE = 2_000, 10
# Upper bound of the queues that are shown for their rules alone.
_MOST_RULES = 1000
# Time over which the rate is measured.
_MINUTE = timedelta(minutes=1)
# Age up to which numbers serve for a page: a little more than the time between two measurements of the thread; and for
# the thread, several of whose pages show them.
_FRESH_SECONDS, _FRESH_FOR_THE_THREAD = 2.5, 0.5
# Time in which steps of the curves are counted, in seconds: for a visitor who waits, and for the thread.
_OF_A_VISIT, _OF_THE_THREAD = 0.005, 0.25
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


# Causes for which rows wait that are due in `staged_jobs`, and that wait for their next attempt.
_OF_DUE = ("paused", "limited", "rate", "list_full", "due")
_OF_RETRYING = ("retrying", "called_back")
_ALONE = ("scheduled", "queued")


@dataclass(slots=True)
class Glance:
    """Numbers of one queue.

    Attributes:
        name: Name of the queue.
        causes: Number of waiting jobs by cause.
        running: Number of jobs that workers have claimed.
        oldest_seconds: Time for which the oldest job has been due, or has waited for a worker.
        dead: Number of dead jobs.
        failing: Five of its jobs have failed since its last finish.
        stalled_seconds: Wait of its jobs, if the queue stalls; 0 if not.
        paused: Pause of the whole queue; None without one.
        finished: Number of jobs that ended in the last minute.
        workers: Number of live workers; None if Redis is not known.
        free: Number of those that could begin a job at once; None as for `workers`.
        curve: Jobs that ended, by step.
    """

    name: str
    causes: Mapping[str, Number] = field(default_factory=dict)
    running: Number = NONE
    oldest_seconds: float | None = None
    dead: Number = NONE
    failing: bool = False
    paused: Pause | None = None
    finished: Number = NONE
    stalled_seconds: float = 0.0
    workers: int | None = None
    free: int | None = None
    curve: list[Number | None] = field(default_factory=list)

    @property
    def waiting(self) -> Number:
        """Number of the jobs that wait for anything but their time."""
        counted = [number for cause, number in self.causes.items() if cause != "scheduled"]
        return Number(sum(each.number for each in counted), any(each.is_estimate for each in counted))

    @property
    def is_unattended(self) -> bool:
        """True if jobs wait and no worker runs them."""
        return self.workers == 0 and self.waiting.number > 0

    @property
    def is_stalled(self) -> bool:
        """True if it has workers, and they have finished none of its jobs for a minute."""
        return self.stalled_seconds > 0 and not self.is_unattended

    @property
    def has_trouble(self) -> bool:
        """True if a person may want to look: it is paused, fails, stalls, or has no worker."""
        return self.paused is not None or self.failing or self.stalled_seconds > 0 or self.is_unattended


@dataclass(frozen=True, slots=True)
class Measured:
    """Numbers of all queues at one time.

    Attributes:
        queues: Numbers of each queue, by name.
        leader: Name of the leader, and since when it leads; None if there is none.
        now: Time by the database's clock.
    """

    queues: dict[str, Glance]
    leader: dict[str, Any] | None
    now: datetime


def look(view: View) -> Measured:
    """Return the numbers of all queues: those of the thread while somebody listens, else of the last seconds."""

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
    counted = queue_overview.sample(connection)
    found = _causes(connection, counted)
    oldest = _later(
        lanes.oldest_due_seconds(connection, statement=lanes.OLDEST_AT_A_GLANCE),
        queue_overview.oldest_queued_seconds(connection),
    )
    stalled = stalls.stalled_queues(connection)
    failing = {each.queue for each in waiting.retrying_queues(connection) if each.failing}
    held = {
        pause.queue: pause
        for pause in reversed(pauses.longest_first(pauses.read(connection)))
        if pause.queue is not None and pause.job_name is None and pause.key is None
    }
    finishing = queue_overview.finishing_queues(connection, now - STEPS * STEP)
    running, dead = counted["running"], counted["dead"]
    names = queue_overview.known(
        found, running, oldest, dead, held, rules.read(connection, most=_MOST_RULES), finishing
    )
    lately = [Step(name, now - _MINUTE) for name in finishing]
    rates = dict(zip(finishing, queue_overview.count_finished(connection, lately, _MINUTE), strict=True))
    history = view.site.history
    history.fill(connection, finishing, now, _OF_THE_THREAD if view.is_thread else _OF_A_VISIT)
    found_queues = {
        name: Glance(
            name,
            found.get(name, {}),
            running.get(name, NONE),
            oldest.get(name),
            dead.get(name, NONE),
            name in failing,
            held.get(name),
            rates.get(name, NONE),
            stalled.get(name, 0.0),
            curve=history.curve(name, now) if name in rates else [],
        )
        for name in names
    }
    leader = queries.leader(connection)
    led = {"name": leader["name"], "since": datetime.fromisoformat(leader["since"])} if leader else None
    return Measured(found_queues, led, now)


def _causes(
    connection: Connection, counted: Mapping[str, Mapping[str, Number]]
) -> dict[str, dict[str, Number]]:
    """Return the numbers of waiting jobs by queue and cause; the first rows of each lane speak for the others."""
    up_to = max(_OF_A_LANE, _LOOKED_AT // max(1, len(lanes.find_lanes(connection, lanes.KINDS))))
    found: dict[str, dict[str, Number]] = {}
    for queue, seen in wait_counts.count_waiting(connection, up_to).items():
        of_queue: dict[str, Number] = {}
        for state, names in (
            ("due", _OF_DUE),
            ("retrying", _OF_RETRYING),
            *((each, (each,)) for each in _ALONE),
        ):
            first = {cause: seen[cause] for cause in names if cause in seen}
            of_queue |= _spread(first, counted[state].get(queue, NONE), up_to)
        found[queue] = {cause: of_queue[cause] for cause in CAUSES if cause in of_queue}
    return found


def _spread(first: Mapping[str, int], all_of_them: Number, up_to: int) -> dict[str, Number]:
    """Divide a number among causes as the first rows are."""
    seen = sum(first.values())
    # Few rows have all been seen.
    if seen < up_to or all_of_them.number <= seen:
        return {
            cause: Number(number, seen >= up_to and all_of_them.is_estimate)
            for cause, number in first.items()
        }
    several = len(first) > 1
    return {
        cause: Number(round(number / seen * all_of_them.number), several or all_of_them.is_estimate)
        for cause, number in first.items()
    }


def _later(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {queue: max(one.get(queue, 0.0), other.get(queue, 0.0)) for queue in {*one, *other}}


def _add_workers(view: View, found: Mapping[str, Glance]) -> None:
    """Fill in the workers, if Redis is known."""
    capacity.add_workers(found, view.site.redis.ask(lambda redis: redis.crews(list(found))) or {})


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
