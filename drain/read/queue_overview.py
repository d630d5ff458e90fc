"""Finished jobs by time step, and due jobs by key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import DELIVERED, DUE, LANE_KIND, LANE_QUEUE
from drain.tables.heads import heads

MOST_QUEUES = 200
# A step is counted in parts, each bounded.
PARTS = 5
PART_UP_TO = 5_000

# One look-up per queue and day. All rows of a day's partition match, so none is skipped.
_FINISHING = f"""{heads("finished_jobs", "finished_at >= %(day)s::timestamptz")}
SELECT queue FROM heads LIMIT {MOST_QUEUES}
"""
_FINISHED = f"""
SELECT wanted.number, part.number, ended.count, ended.last
FROM unnest(%(queues)s::text[], %(begins)s::timestamptz[]) WITH ORDINALITY AS wanted (queue, begun_at, number),
    LATERAL (SELECT part AS number, wanted.begun_at + part * %(length)s::interval AS begun_at
        FROM generate_series(0, {PARTS} - 1) AS part) AS part,
    LATERAL (SELECT count(*) AS count, max(finished_at) AS last FROM (
        SELECT finished_at FROM finished_jobs
        WHERE queue = wanted.queue
            AND finished_at >= part.begun_at AND finished_at < part.begun_at + %(length)s::interval
        ORDER BY finished_at LIMIT {PART_UP_TO}) AS first) AS ended
"""
_OF_KEYS = f"""
SELECT wanted.key, jobs.number FROM pg_catalog.unnest(%(keys)s::text[]) AS wanted (key), LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM staged_jobs_ready AS job
        WHERE {DUE} AND job.key IS NOT NULL AND job.queue = %(queue)s AND job.key = wanted.key
        LIMIT %(up_to)s::bigint) AS counted) AS jobs
"""
_OF_A_QUEUE = f"""
SELECT sum(due.number)::bigint + (
    SELECT count(*) FROM (
        SELECT FROM inflight_jobs WHERE {DELIVERED} AND queue = %(queue)s LIMIT %(up_to)s::bigint) AS delivered) + (
    SELECT count(*) FROM (
        SELECT FROM inflight_jobs WHERE next_run_at IS NOT NULL AND queue = %(queue)s
        LIMIT %(up_to)s::bigint) AS waiting)
FROM generate_series(0, 3) AS lane (kind), LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM staged_jobs_ready AS job
        WHERE {DUE} AND {LANE_KIND} = lane.kind AND job.{LANE_QUEUE} = %(queue)s
        LIMIT %(up_to)s::bigint) AS counted) AS due
"""


class Step(NamedTuple):
    """Time step of one queue."""

    queue: str
    begun_at: datetime


class Number(NamedTuple):
    """Number of jobs, possibly extrapolated."""

    number: int
    is_estimate: bool = False


def finishing_queues(connection: Connection, since: datetime) -> list[str]:
    """Name the queues that finished jobs since this UTC day."""
    day = since.replace(hour=0, minute=0, second=0, microsecond=0)
    return [queue for (queue,) in connection.execute(_FINISHING, {"day": day})]


def count_finished(connection: Connection, steps: Sequence[Step], length: timedelta) -> list[Number]:
    """Count the jobs that ended in each step, extrapolating parts above their bound.

    Needs sequential scans off.
    """
    part = length / PARTS
    parameters = {
        "queues": [step.queue for step in steps],
        "begins": [step.begun_at for step in steps],
        "length": part,
    }
    numbers, estimates = [0] * len(steps), set[int]()
    for place, which, count, last in connection.execute(_FINISHED, parameters, binary=True):
        number = place - 1
        if count == PART_UP_TO:
            begun_at = steps[number].begun_at + which * part
            count = round(count * part / max(last - begun_at, timedelta(milliseconds=1)))  # noqa: PLW2901
            estimates.add(number)
        numbers[number] += count
    return [Number(count, number in estimates) for number, count in enumerate(numbers)]


def count_keys(connection: Connection, queue: str, keys: Sequence[str], up_to: int) -> dict[str, int]:
    """Count the due rows of these keys, each bounded."""
    parameters = {"queue": queue, "keys": list(keys), "up_to": up_to}
    return dict(connection.execute(_OF_KEYS, parameters).fetchall())


def count_of_queue(connection: Connection, queue: str, up_to: int) -> int:
    """Count jobs due, delivered or retrying, up to a bound."""
    (number,) = fetch_one(connection, _OF_A_QUEUE, {"queue": queue, "up_to": up_to})
    return min(int(number), up_to)
