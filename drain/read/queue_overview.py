"""Finished and dead jobs by time, latency, due jobs by key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import DELIVERED, DUE, HAS_RUN, LANE_KIND, LANE_QUEUE, finite
from drain.tables.heads import heads

MOST_QUEUES = 200
# Bounded parts of a step.
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
_DIED = """
SELECT date_bin(%(length)s::interval, died_at, '2000-01-01Z'::timestamptz), count(*) FROM (
    SELECT died_at FROM dead_jobs ORDER BY id DESC LIMIT %(up_to)s::bigint) AS job
WHERE died_at >= %(since)s::timestamptz AND died_at < %(until)s::timestamptz GROUP BY 1
"""
DIED_UP_TO = 10_000
# The wait is known only for a single claim: later ones overwrite its time.
_LATENCY = f"""
SELECT count(*), percentile_cont(%(shares)s::float8[]) WITHIN GROUP (ORDER BY wait) FILTER (WHERE fencing_token = 1),
    percentile_cont(%(shares)s::float8[]) WITHIN GROUP (ORDER BY run)
FROM pg_catalog.unnest(%(queues)s::text[]) AS wanted (queue), LATERAL (
    SELECT fencing_token, {HAS_RUN} AS has_run,
        greatest(0, date_part('epoch', {finite("finished_at")} - {finite("claimed_at")})) AS run,
        greatest(0, date_part('epoch', {finite("claimed_at")} - {finite("greatest(scheduled_at, staged_at)")})) AS wait,
        isfinite(finished_at) AND isfinite(claimed_at) AS is_possible
    FROM finished_jobs WHERE finished_jobs.queue = wanted.queue
        AND finished_at > now() - make_interval(secs => %(seconds)s::float8)
    ORDER BY finished_at DESC LIMIT %(up_to)s::bigint) AS job
WHERE has_run AND is_possible
"""
LATENCY_SECONDS = 3600
_LATENCY_OF = 5_000
SHARES = (0.5, 0.95, 0.99)
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


class Latency(NamedTuple):
    """Seconds at three percentiles; empty without jobs."""

    jobs: int
    wait: Sequence[float]
    run: Sequence[float]


def finishing_queues(connection: Connection, since: datetime) -> list[str]:
    """Name the queues that finished jobs since this UTC day."""
    day = since.replace(hour=0, minute=0, second=0, microsecond=0)
    return [queue for (queue,) in connection.execute(_FINISHING, {"day": day})]


def count_finished(connection: Connection, steps: Sequence[Step], length: timedelta) -> list[Number]:
    """Count jobs ended in each step, extrapolating parts above their bound.

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


def count_died(
    connection: Connection, since: datetime, until: datetime, length: timedelta
) -> dict[datetime, int]:
    """Count deaths by step, among the `DIED_UP_TO` staged last."""
    parameters = {"length": length, "since": since, "until": until, "up_to": DIED_UP_TO}
    return dict(connection.execute(_DIED, parameters, binary=True).fetchall())


def latency(connection: Connection, queues: Sequence[str]) -> Latency:
    """Measure waits and run times within an hour, evenly over the queues."""
    up_to = max(10, _LATENCY_OF // max(1, len(queues)))
    parameters = {
        "queues": list(queues[:MOST_QUEUES]),
        "shares": list(SHARES),
        "seconds": LATENCY_SECONDS,
        "up_to": up_to,
    }
    jobs, wait, run = fetch_one(connection, _LATENCY, parameters)
    return Latency(jobs, wait or (), run or ())


def count_keys(connection: Connection, queue: str, keys: Sequence[str], up_to: int) -> dict[str, int]:
    """Count these keys' due rows, each bounded."""
    parameters = {"queue": queue, "keys": list(keys), "up_to": up_to}
    return dict(connection.execute(_OF_KEYS, parameters).fetchall())


def count_of_queue(connection: Connection, queue: str, up_to: int) -> int:
    """Count jobs due, delivered or retrying, up to a bound."""
    (number,) = fetch_one(connection, _OF_A_QUEUE, {"queue": queue, "up_to": up_to})
    return min(int(number), up_to)
