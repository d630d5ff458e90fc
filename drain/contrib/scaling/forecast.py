"""`drain forecast`."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext
from dataclasses import dataclass
from math import inf, isinf

import click

from drain import wire
from drain.commands.database import database, hint_at_unknown
from drain.config import Settings
from drain.contrib.scaling import load as loads
from drain.contrib.scaling.load import Load
from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.formatting import count, duration, figure, visible
from drain.read import queries, queues
from drain.read.capacity import Crew, read_crew
from drain.read.queue import Queue
from drain.read.snapshots import snapshot
from drain.terminal.commandline import FiniteRange, as_json_option, settings_options
from drain.wire import Producer

_STATEMENT_SECONDS = 120
_SHORTEST_SECONDS = 1e-6


@dataclass(frozen=True)
class Forecast:
    """Forecast of one queue.

    Attributes:
        jobs: Due, running, or awaiting their next attempt, and `rows` more.
        per_second: Jobs that the queue runs; None while no worker is free.
        arrivals: Jobs that come due per second.
        bound: Rule that limits `per_second`, if any.
        is_estimate: The number of jobs is not exact.
    """

    queue: str
    jobs: int
    workers: int
    run_seconds: float
    per_second: float | None
    arrivals: float
    bound: str | None
    is_estimate: bool
    is_paused: bool

    @property
    def ends_seconds(self) -> float:
        """Seconds until these jobs have ended; infinite if unknown."""
        return self.jobs / self.per_second if self.per_second else inf

    @property
    def caught_up_seconds(self) -> float:
        """Seconds until the backlog and arrivals are done; infinite if never."""
        spare = (self.per_second or 0.0) - self.arrivals
        return self.jobs / spare if spare > 0 else inf

    def as_json(self) -> dict[str, object]:
        """Convert to JSON types; infinity is null."""
        return {
            "queue": self.queue,
            "jobs": self.jobs,
            "is_estimate": self.is_estimate,
            "workers": self.workers,
            "run_seconds": self.run_seconds,
            "per_second": self.per_second,
            "arrivals_per_second": self.arrivals,
            "bound": self.bound,
            "paused": self.is_paused,
            "ends_seconds": _finite(self.ends_seconds),
            "caught_up_seconds": _finite(self.caught_up_seconds),
        }

    def lines(self) -> list[str]:
        """Render for users."""
        jobs = f"{'about ' if self.is_estimate else ''}{count(self.jobs, 'job')}"
        speed = f"{duration(self.run_seconds)} per job, {figure(self.arrivals)} jobs/s arrive"
        lines = [f"queue {self.queue}: {jobs}, {count(self.workers, 'worker')}, {speed}"]
        if self.is_paused:
            lines.append("paused: assumes that the queue resumes now")
        if self.per_second is None:
            return [*lines, "no estimate: all workers are busy with long jobs"]
        bound = f", limited by {self.bound}" if self.bound else ""
        lines.append(f"clears in {duration(self.ends_seconds)}, at {figure(self.per_second)} jobs/s{bound}")
        if isinf(self.caught_up_seconds):
            lines.append("never catches up: jobs arrive faster than they run")
        elif self.arrivals:
            lines.append(f"catches up with arrivals in {duration(self.caught_up_seconds)}")
        return lines


@click.command(short_help="Estimate when a backlog clears.")
@click.argument("queue")
@settings_options("database_url", "redis_url")
@click.option(
    "--rows",
    type=click.IntRange(0, 10**12),
    default=0,
    help="Extra jobs to assume, such as a planned backfill.",
)
@click.option(
    "--workers", type=click.IntRange(1, 100_000), help="Number of worker processes; live ones by default."
)
@click.option(
    "--run-seconds",
    type=FiniteRange(min=_SHORTEST_SECONDS, max=1e9),
    help="Run time per job; that of the latest jobs by default.",
)
@click.option(
    "--arrivals",
    type=FiniteRange(min=0, max=1e9),
    help="New jobs per second; those of the last minute by default.",
)
@as_json_option
def forecast(
    settings: Settings,
    *,
    queue: str,
    rows: int,
    workers: int | None,
    run_seconds: float | None,
    arrivals: float | None,
    as_json: bool,
) -> None:
    """Estimate when the backlog of QUEUE clears, from its workers, run times, arrivals and limits.

    Assumes that the queue's workers serve no other queue; ignores per-key rules and failed attempts.

    \b
    drain forecast mail
    drain forecast mail --workers 8 --arrivals 0
    drain forecast bulk --rows 2000000 --run-seconds 0.2
    """  # noqa: D301
    redis = wire.Producer(settings.redis_url, settings.namespace) if settings.redis_url else None
    with closing(redis) if redis else nullcontext(), database(settings, _STATEMENT_SECONDS) as connection:
        found, load, crew = _read(connection, redis, queue)
        now = queries.now(connection)
    workers, crew = (workers, Crew((), ())) if workers else (len(crew.workers), crew)
    mean_seconds = run_seconds or load.mean_seconds
    run_seconds = run_seconds or load.busy_seconds or load.mean_seconds
    if not workers:
        raise DrainError(
            f"queue {visible(queue)} has no live workers: give --workers"
            if redis
            else "Redis is not configured, so the workers are unknown: set DRAIN_REDIS_URL, or give --workers"
        )
    if run_seconds is None or mean_seconds is None:
        raise DrainError(f"no job in queue {visible(queue)} finished in the last day: give --run-seconds")
    # A job may take no time, or less if the clock was set back.
    run_seconds = max(run_seconds, _SHORTEST_SECONDS)
    speed, bound = _speed(load, workers, run_seconds, max(run_seconds, mean_seconds))
    made = Forecast(
        queue=visible(queue),
        jobs=found.ready + found.inflight + rows,
        workers=workers,
        run_seconds=run_seconds,
        per_second=None if crew.is_stuck(now, speed) else speed,
        arrivals=load.arrivals if arrivals is None else abs(arrivals),
        bound=bound,
        is_paused=load.is_paused,
        is_estimate=found.is_estimate("ready") or found.is_estimate("inflight"),
    )
    click.echo(json.dumps(made.as_json()) if as_json else "\n".join(made.lines()))


def _read(connection: Connection, redis: Producer | None, queue: str) -> tuple[Queue, Load, Crew]:
    crew = read_crew(connection, redis, queue) if redis is not None else Crew((), ())
    load = loads.read(connection, queue)
    if load is None:
        hint_at_unknown([queue], queries.queues(connection))
    with snapshot(connection):
        return queues.read(connection).get(queue, Queue()), load or Load(queue), crew


def _speed(load: Load, workers: int, run_seconds: float, mean_seconds: float) -> tuple[float, str | None]:
    speeds: list[tuple[float, str | None]] = [(workers / run_seconds, None)]
    if load.rules.running is not None:
        speeds.append((load.rules.running / mean_seconds, "running"))
    if load.rules.bucket is not None:
        speeds.append((load.rules.bucket.per_second, "rate"))
    return min(speeds, key=lambda each: each[0])


def _finite(seconds: float) -> float | None:
    return None if isinf(seconds) else seconds
