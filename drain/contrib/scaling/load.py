"""Load of queues, from bounded reads of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from drain.database.postgres import Connection, fetch_one
from drain.read import queries, waiting_by_cause
from drain.read.causes import MOST
from drain.read.snapshots import snapshot
from drain.read.waiting_by_cause import Waiting
from drain.tables import pauses, rules as ruled
from drain.tables.columns import DELIVERED, DUE, HAS_RUN, IS_CLAIMED, LANE_KIND, LANE_QUEUE, finite
from drain.tables.lanes import KINDS
from drain.tables.rules import RulesRow

WINDOW_SECONDS = 60.0
# Latest finished jobs, for run time and speed; latest waiting jobs per lane, for arrivals.
_SAMPLE = 100
_NEWEST = 100
# A job's share: its worker's busy time divided by its jobs, since jobs claimed together wait for each other.
_FINISHED = f"""
WITH latest AS (
    SELECT known.queue, job.* FROM pg_catalog.unnest(%(queues)s::text[]) AS known (queue), LATERAL (
        SELECT finished_by, claimed_at, finished_at, greatest(scheduled_at, staged_at) AS due_at, {HAS_RUN} AS has_run
        FROM finished_jobs AS job
        WHERE job.queue = known.queue AND job.finished_at > now() - interval '1 day'
            AND isfinite(job.finished_at) AND isfinite(job.claimed_at)
        ORDER BY job.finished_at DESC LIMIT {_SAMPLE}) AS job
), ran AS (
    SELECT *, max(finished_at) OVER (
        PARTITION BY queue, finished_by ORDER BY claimed_at, finished_at
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS busy_until
    FROM latest WHERE has_run
)
SELECT queue, count(*), count(*) FILTER (WHERE due_at > now() - make_interval(secs => %(window)s::float8)),
    extract(epoch FROM now() - min(finished_at))::float8,
    extract(epoch FROM avg(finished_at - claimed_at))::float8,
    extract(epoch FROM sum(greatest(interval '0', finished_at - greatest(claimed_at, busy_until))) / count(*))::float8
FROM ran GROUP BY queue
"""
# Arrivals among waiting jobs, by lane; delivered jobs are one more.
_WAITING = f"""
SELECT lane.queue, job.number, job.arrived, extract(epoch FROM clock_timestamp() - job.oldest)::float8
FROM (
    SELECT * FROM pg_catalog.unnest(%(queues)s::text[]) AS known (queue),
        pg_catalog.unnest(%(kinds)s::integer[]) AS kinds (kind)) AS lane,
LATERAL (
    SELECT count(*) AS number, min(due_at) AS oldest,
        count(*) FILTER (WHERE due_at > now() - make_interval(secs => %(window)s::float8)) AS arrived
    FROM (
        SELECT {finite("greatest(staged_at, matured_at)")} AS due_at FROM staged_jobs_ready
        WHERE {DUE} AND {LANE_KIND} = lane.kind AND {LANE_QUEUE} = lane.queue
        ORDER BY priority DESC, id DESC LIMIT {_NEWEST}) AS newest) AS job
UNION ALL
SELECT known.queue, job.number, job.arrived, extract(epoch FROM clock_timestamp() - job.oldest)::float8
FROM pg_catalog.unnest(%(queues)s::text[]) AS known (queue), LATERAL (
    SELECT count(*) AS number, min(due_at) AS oldest,
        count(*) FILTER (WHERE due_at > now() - make_interval(secs => %(window)s::float8)) AS arrived
    FROM (
        SELECT {finite("greatest(scheduled_at, staged_at)")} AS due_at FROM inflight_jobs AS delivered
        WHERE {DELIVERED} AND delivered.queue = known.queue
        ORDER BY delivery DESC LIMIT {_NEWEST}) AS newest) AS job
"""
_RUNNING = f"""
SELECT queue, count(*), extract(epoch FROM clock_timestamp() - min(claimed_at))::float8,
    extract(epoch FROM avg(clock_timestamp() - claimed_at))::float8,
    count(*) FILTER (WHERE greatest(scheduled_at, staged_at) > now() - make_interval(secs => %(window)s::float8))
FROM (
    SELECT queue, claimed_by, {finite("claimed_at")} AS claimed_at, scheduled_at, staged_at FROM inflight_jobs
    WHERE {IS_CLAIMED} ORDER BY lease_expires_at DESC LIMIT {MOST}) AS claimed
WHERE queue = ANY (%(queues)s::text[]) GROUP BY queue, claimed_by
"""
NO_RULES = RulesRow("")
_HAS_FINISHED = "SELECT EXISTS (SELECT FROM finished_jobs WHERE queue = %(queue)s)"


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one queue.

    Attributes:
        waiting: Jobs by cause.
        arrivals: Jobs that came due per second over the last minute.
        mean_seconds: From claim to finish; of running jobs if none finished within a day, None without any.
        busy_seconds: Busy time of a worker process per job, below the mean if it runs several at once; None if none
            finished.
        running: (number, age of the oldest) of each worker process's jobs.
    """

    queue: str
    waiting: Waiting = field(default_factory=dict)
    arrivals: float = 0.0
    mean_seconds: float | None = None
    busy_seconds: float | None = None
    running: tuple[tuple[int, float], ...] = ()
    rules: RulesRow = NO_RULES
    is_paused: bool = False


def read_all(
    connection: Connection, queues: Iterable[str], waiting: Mapping[str, Waiting]
) -> dict[str, Load]:
    """Read queues' loads; sequential scans must be off, so that no plan reads a whole table."""
    queues = list(queues)
    rules, paused = ruled.read_of(connection, queues), pauses.Pauses(pauses.read(connection))
    loads = {
        queue: Load(
            queue,
            waiting.get(queue, {}),
            rules=rules.get(queue, RulesRow(queue)),
            is_paused=paused.queue(queue),
        )
        for queue in queues
    }
    parameters = {"queues": list(loads), "kinds": list(KINDS), "window": WINDOW_SECONDS}
    waited: defaultdict[str, float] = defaultdict(float)
    running: defaultdict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for queue, number, arrived, oldest in connection.execute(_WAITING, parameters):
        waited[queue] += _rate(number, arrived, oldest or 0.0, _NEWEST)
    arrivals = {queue: min(waited[queue], _most_arrivals(load.waiting)) for queue, load in loads.items()}
    for queue, number, oldest, mean, arrived in connection.execute(_RUNNING, parameters):
        running[queue].append((number, max(0.0, oldest), max(0.0, mean)))
        arrivals[queue] += arrived / WINDOW_SECONDS
    for queue, number, arrived, oldest, mean, busy in connection.execute(_FINISHED, parameters):
        arrivals[queue] += _rate(number, arrived, oldest, _SAMPLE)
        loads[queue] = replace(loads[queue], mean_seconds=max(0.0, mean), busy_seconds=max(0.0, busy))
    return {queue: _with(load, arrivals[queue], running[queue]) for queue, load in loads.items()}


def read(connection: Connection, queue: str) -> Load | None:
    """Read a queue's load in one snapshot; None if it appears in no table or rule."""
    with snapshot(connection):
        waiting = waiting_by_cause.count_waiting(connection, MOST, named=[queue])
        load = read_all(connection, [queue], waiting)[queue]
        return load if _is_known(connection, load) else None


def _is_known(connection: Connection, load: Load) -> bool:
    if load.waiting or load.running or load.busy_seconds is not None or load.rules != RulesRow(load.queue):
        return True
    (has_finished,) = fetch_one(connection, _HAS_FINISHED, {"queue": load.queue})
    return bool(has_finished) or load.queue in queries.queues(connection)


def _rate(number: int, arrived: int, oldest: float, most: int) -> float:
    """Return arrivals per second from a sample of up to `most` jobs, `oldest` seconds old, `arrived` in the window."""
    is_whole = number < most or oldest > WINDOW_SECONDS
    # A bulk load this instant says little about the next one.
    return arrived / (WINDOW_SECONDS if is_whole else max(1.0, oldest))


def _most_arrivals(waiting: Waiting) -> float:
    numbers = [
        number
        for cause, number in waiting.items()
        if cause not in ("scheduled", "blocked", "retrying", "parked")
    ]
    # A count at its bound says nothing.
    return inf if max(numbers, default=0) >= MOST else sum(numbers) / WINDOW_SECONDS


def _with(load: Load, arrivals: float, running: Sequence[tuple[int, float, float]]) -> Load:
    mean = load.mean_seconds
    if mean is None and running:
        mean = sum(number * mean_age for number, _, mean_age in running) / sum(
            number for number, *_ in running
        )
    workers = tuple((number, oldest) for number, oldest, _ in running)
    return replace(load, arrivals=arrivals, mean_seconds=mean, running=workers)
