"""Forecast of a flow's end, from its longest path and recent jobs with the same names.

No number of workers ends the flow before its longest path. At worst, they first do all other work of the flow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from statistics import fmean, quantiles
from typing import Any, NamedTuple

from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.formatting import count, duration
from drain.read import flows, queries
from drain.read.flows import MOST_LOOKED_AT, Flow, Node
from drain.tables import rules
from drain.tables.columns import CHILD_WAITS, HAS_RUN, MARKER, PARKED, START_IF_BLOCKED, id_array

# Latest jobs per queue, and the fewest of a name.
_SAMPLE = 10_000
_FEWEST = 5
# Without an alternative that runs only if a predecessor dies. A parked job starts at its deadline, if it sleeps.
_MEMBERS = f"""
SELECT given.id, job.* FROM pg_catalog.unnest(%(ids)s::bigint[]) AS given (id), LATERAL (
    SELECT job_name, queue, {START_IF_BLOCKED} AS starts_at, NULL::timestamptz AS began_at, coalesce((
        SELECT true FROM job_edges AS edge WHERE child_id = job.id AND {CHILD_WAITS}
            AND (SELECT true FROM job_edges AS mate WHERE mate.child_id = %(flow)s::bigint
                AND mate.parent_id = edge.parent_id AND mate.on_failure = 'hold') IS NULL
        LIMIT 1), false) AS waits_outside
    FROM staged_jobs AS job
    WHERE job.id = given.id AND (SELECT true FROM job_edges
        WHERE child_id = job.id AND {CHILD_WAITS} AND on_failure = 'only' LIMIT 1) IS NULL
    UNION ALL
    SELECT job_name, queue, CASE WHEN {PARKED}
            THEN (SELECT CASE WHEN event IS NULL THEN deadline END FROM job_waits WHERE job_id = job.id)
            ELSE coalesce(next_run_at, now()) END,
        CASE WHEN lease_expires_at > now() THEN claimed_at END, false
    FROM inflight_jobs AS job WHERE job.id = given.id
    LIMIT 1) AS job
WHERE job_name <> '{MARKER}'
"""
_FINISHED = f"""
SELECT known.queue, job.* FROM pg_catalog.unnest(%s::text[]) AS known (queue), LATERAL (
    SELECT job_name, finished_by, claimed_at, greatest(claimed_at, finished_at) AS finished_at,
        date_part('epoch', finished_at - moved_at) AS seconds
    FROM finished_jobs AS job
    WHERE job.queue = known.queue AND job.finished_at > now() - interval '7 days' AND {HAS_RUN}
        AND isfinite(job.finished_at) AND isfinite(job.claimed_at) AND isfinite(job.moved_at)
    ORDER BY job.finished_at DESC LIMIT {_SAMPLE}) AS job
ORDER BY known.queue
"""


class NoForecastError(DrainError):
    """The end of a flow can't be predicted."""


class Member(NamedTuple):
    """Unfinished job.

    Attributes:
        starts_at: None if it waits for an event.
        began_at: None unless it runs.
        waits_outside: It waits for a job outside the flow.
    """

    job_name: str
    queue: str
    starts_at: datetime | None
    began_at: datetime | None
    waits_outside: bool


class Took(NamedTuple):
    """Seconds that jobs took: the fastest tenth and the mean to run, the slowest tenth from due to finished."""

    least: float
    mean: float
    most: float


class FlowForecast(NamedTuple):
    """Forecast of a flow's end.

    Attributes:
        earliest_seconds: If each job on the path is as fast as the fastest tenth.
        latest_seconds: If each is as slow as the slowest tenth, and other members run first.
        path: Nodes of the longest path.
    """

    earliest_seconds: float
    latest_seconds: float
    path: Sequence[Node]

    def as_json(self, flow: Flow) -> dict[str, Any]:
        """Convert to JSON types."""
        path = [{"id": node.id, "name": node.name} for node in self.path]
        return {"flow": flow.id, "name": flow.name} | self._asdict() | {"path": path}


@dataclass(frozen=True)
class Remaining:
    """Unfinished members of a flow, and what such jobs took.

    Attributes:
        members: By node; none for a marker or an alternative.
        took: By queue and job name.
        speeds: Jobs that a worker process of the queue runs at a time.
        limits: Highest number of running jobs of a queue.
    """

    flow: Flow
    nodes: Sequence[Node]
    members: Mapping[int, Member]
    took: Mapping[tuple[str, str], Took]
    speeds: Mapping[str, float]
    limits: Mapping[str, int]
    now: datetime

    @property
    def queues(self) -> list[str]:
        """Queues of the members."""
        return sorted({member.queue for member in self.members.values()})

    def forecast(self, workers: Mapping[str, int]) -> FlowForecast:
        """Predict the end, with a number of worker processes by queue.

        Raises:
            NoForecastError: A queue has no worker, or a job's duration is unknown.
        """
        ends: dict[int, tuple[float, float]] = {}
        last: dict[int, int | None] = {}
        nodes = {node.id: node for node in self.nodes}
        # Ids are higher than those of predecessors.
        for node in sorted(self.nodes, key=lambda node: node.id):
            above = [each for each in node.after if each in ends]
            last[node.id] = max(above, key=lambda each: ends[each][1], default=None)
            starts = [max((ends[each][way] for each in above), default=0.0) for way in (0, 1)]
            ends[node.id] = self._end(node, *starts)
        at = max(ends, key=lambda each: ends[each][1], default=None)
        latest = self._work_seconds(workers) + (0.0 if at is None else ends[at][1])
        path: list[Node] = []
        while at is not None:
            path.append(nodes[at])
            at = last[at]
        return FlowForecast(max((end for end, _ in ends.values()), default=0.0), latest, path[::-1])

    def _end(self, node: Node, earliest: float, latest: float) -> tuple[float, float]:
        member = self.members.get(node.id)
        if member is None:
            return earliest, latest
        if member.waits_outside:
            raise NoForecastError(f"no forecast: node {node.title} waits for a job outside the flow")
        if member.starts_at is None:
            raise NoForecastError(f"no forecast: node {node.title} waits for an event")
        took = self.took.get((member.queue, member.job_name))
        if took is None:
            few = f"fewer than {_FEWEST} jobs {member.job_name} have finished in queue {member.queue}"
            raise NoForecastError(f"no forecast: {few} recently")
        ran = (self.now - member.began_at).total_seconds() if member.began_at else 0.0
        if ran > took.most:
            raise NoForecastError(
                f"no forecast: node {node.title} has run for {duration(ran)}, longer than nine in ten such jobs "
                f"({duration(took.most)})"
            )
        due = (member.starts_at - self.now).total_seconds()
        return max(earliest, due) + max(0.0, took.least - ran), max(latest, due) + took.most - ran

    def _work_seconds(self, workers: Mapping[str, int]) -> float:
        seconds = 0.0
        for queue, jobs in Counter(member.queue for member in self.members.values()).items():
            if not workers.get(queue):
                raise NoForecastError(f"no forecast: queue {queue} has no live workers: give --workers")
            at_once = min(workers[queue] * self.speeds.get(queue, 1.0), self.limits.get(queue, jobs), jobs)
            work = sum(
                self.took[queue, member.job_name].mean
                for member in self.members.values()
                if member.queue == queue
            )
            seconds += work / max(1.0, at_once)
        return seconds


def read(connection: Connection, flow: Flow) -> Remaining:
    """Read what remains of a flow, in a snapshot.

    Raises:
        NoForecastError: It isn't running, or has too many unfinished members.
    """
    if flow.state != "running":
        raise NoForecastError(f"no forecast: flow {flow.words} is {flow.state}")
    nodes = flows.nodes(connection, flow.id, MOST_LOOKED_AT + 1, unfinished=True)
    if len(nodes) > MOST_LOOKED_AT:
        raise NoForecastError(f"no forecast: more than {count(MOST_LOOKED_AT, 'member')} are unfinished")
    awaited = dict(flows.unfinished(connection, flow.id))
    rows = connection.execute(_MEMBERS, {"ids": id_array(awaited.values()), "flow": flow.id}, binary=True)
    found = {job_id: Member._make(row) for job_id, *row in rows}
    members = {node: found[job_id] for node, job_id in awaited.items() if job_id in found}
    queues = sorted({member.queue for member in members.values()})
    took, speeds = _measure(connection, queues)
    limits = {
        queue: row.running
        for queue, row in rules.read_of(connection, queues).items()
        if row.running is not None
    }
    return Remaining(flow, nodes, members, took, speeds, limits, queries.now(connection))


def _measure(
    connection: Connection, queues: Sequence[str]
) -> tuple[dict[tuple[str, str], Took], dict[str, float]]:
    took: dict[tuple[str, str], Took] = {}
    speeds: dict[str, float] = {}
    rows = connection.execute(_FINISHED, (list(queues),), binary=True).fetchall()
    for queue, jobs in groupby(rows, key=lambda row: row[0]):
        ran: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        spans: defaultdict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
        for _, name, worker, claimed_at, finished_at, seconds in jobs:
            ran[name].append(((finished_at - claimed_at).total_seconds(), max(0.0, seconds)))
            spans[worker or ""].append((claimed_at, finished_at))
        for name, each in ran.items():
            if len(each) >= _FEWEST:
                runs, whole = zip(*each, strict=True)
                least, most = (quantiles(times, n=10, method="inclusive") for times in (runs, whole))
                took[queue, name] = Took(least[0], fmean(runs), max(most[-1], least[0]))
        busy = sum(map(_busy_seconds, spans.values()))
        speeds[queue] = sum(run for each in ran.values() for run, _ in each) / busy if busy else 1.0
    return took, speeds


def _busy_seconds(spans: Sequence[tuple[datetime, datetime]]) -> float:
    """Length of the union of a worker process's runs."""
    seconds, until = 0.0, min(began for began, _ in spans)
    for began, ended in sorted(spans):
        seconds += max(0.0, (ended - max(began, until)).total_seconds())
        until = max(until, ended)
    return seconds
