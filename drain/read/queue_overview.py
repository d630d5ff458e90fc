"""Numbers of queues at a glance, for the page of `drain web`: no question reads more than a bounded number of rows.

Numbers of a small table are exact. Of a larger one some pages are read, always the same ones, and the numbers are
worked out from these: `about`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import DELIVERED, DUE, LANE_KIND, LANE_QUEUE, QUEUED, RETRYING, RUNNING
from drain.tables.heads import heads
from drain.tables.waiting import WAITS_SINCE

# Upper bound of the pages of 8 KiB that are read of a table, of some ten to some hundred rows each.
PAGES = 100
# Upper bound of the jobs of one queue that are looked at for the age of the oldest one.
_OLDEST_OF = 20
# Upper bound of the queues whose finished jobs are counted.
MOST_QUEUES = 200
# Parts of a step of time in which finished jobs are counted, and the upper bound of the jobs of one part.
PARTS = 5
PART_UP_TO = 5_000

_PAGES = """
SELECT sum(pg_catalog.pg_relation_size(part.id))::bigint / 8192 FROM (
    SELECT %(table)s::regclass AS id UNION SELECT relid FROM pg_partition_tree(%(table)s::regclass)) AS part
"""
# Condition of each number, in the rows of one table.
_STATES = {
    "staged_jobs_ready": {"due": "true"},
    "staged_jobs_scheduled": {"scheduled": "true"},
    "inflight_jobs": {
        "running": RUNNING,
        "retrying": RETRYING,
        "queued": QUEUED,
    },
    "dead_jobs": {"dead": "true"},
}
# Of a queue's delivered jobs those with the lowest delivery numbers, which have waited for longest, as a rule.
_OLDEST_QUEUED = f"""{heads("inflight_jobs", DELIVERED, "delivery")}
SELECT heads.queue, greatest(0, extract(epoch FROM clock_timestamp() - min(oldest.since)))::float8
FROM heads, LATERAL (
    SELECT {WAITS_SINCE} AS since FROM inflight_jobs AS job
    WHERE {DELIVERED} AND job.queue = heads.queue ORDER BY job.delivery LIMIT {_OLDEST_OF}) AS oldest
GROUP BY heads.queue
"""
# One look-up for each queue in each day. All rows of a day's partition fulfil the condition on its time, so that no row
# is passed over.
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
SELECT wanted.key, jobs.number FROM unnest(%(keys)s::text[]) AS wanted (key), LATERAL (
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
    """Step of time of one queue."""

    queue: str
    begun_at: datetime


class Number(NamedTuple):
    """Number of jobs.

    Attributes:
        number: The number.
        is_estimate: There are more than are counted; the number is worked out from a part of them.
    """

    number: int
    is_estimate: bool = False


NONE = Number(0)


def sample(connection: Connection) -> dict[str, dict[str, Number]]:
    """Count the jobs of each queue by state: `due`, `scheduled`, `queued`, `running`, `retrying`, `dead`.

    A queue with few jobs in a large table may be missing.

    Returns:
        State -> queue -> number above 0.
    """
    found: dict[str, dict[str, Number]] = {}
    for table, states in _STATES.items():
        (pages,) = fetch_one(connection, _PAGES, {"table": table})
        share = min(1.0, PAGES / max(1, pages))
        columns = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in states.values())
        part = "TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (1)"
        statement = f"SELECT queue, {columns} FROM {table} {part} GROUP BY queue"
        rows = connection.execute(statement.encode(), {"percent": 100 * share}).fetchall()
        for place, state in enumerate(states, 1):
            found[state] = {
                row[0]: Number(round(row[place] / share), is_estimate=share < 1) for row in rows if row[place]
            }
    return found


def oldest_queued_seconds(connection: Connection) -> dict[str, float]:
    """Measure for how long the oldest delivered job of each queue has waited for a worker."""
    return dict(connection.execute(_OLDEST_QUEUED).fetchall())


def finishing_queues(connection: Connection, since: datetime) -> list[str]:
    """Name the queues that have finished a job on the day of this time, by UTC, or later."""
    day = since.replace(hour=0, minute=0, second=0, microsecond=0)
    return [queue for (queue,) in connection.execute(_FINISHING, {"day": day})]


def count_finished(connection: Connection, steps: Sequence[Step], length: timedelta) -> list[Number]:
    """Count the jobs that ended in each step: finished, or given way to another one.

    Where a part of a step has more than are counted, the rest is worked out from how long the first took.

    Args:
        connection: Any; with sequential scans off.
        steps: Queues and times.
        length: Length of a step.
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
    """Count the due rows of these keys of a queue, each up to a bound."""
    parameters = {"queue": queue, "keys": list(keys), "up_to": up_to}
    return dict(connection.execute(_OF_KEYS, parameters).fetchall())


def count_of_queue(connection: Connection, queue: str, up_to: int) -> int:
    """Count the jobs of a queue that are due, or wait for a worker or their next attempt, up to a bound."""
    (number,) = fetch_one(connection, _OF_A_QUEUE, {"queue": queue, "up_to": up_to})
    return min(int(number), up_to)


def known(*queues: Collection[str]) -> list[str]:
    """Sort the names of all these queues."""
    return sorted(set().union(*queues))
