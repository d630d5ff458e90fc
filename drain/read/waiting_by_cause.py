"""Waiting jobs of each queue by cause, up to a bound.

Index rows are counted; with rules or pauses, the first rows are read and classified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import TypeAlias

from drain.database.postgres import Connection
from drain.read.causes import CAUSES, Standing, cause_of, read_standings
from drain.tables import lanes, pauses as paused, rules as ruled
from drain.tables.columns import (
    BLOCKED_AT,
    DELIVERED,
    DUE,
    IS_BLOCKED,
    LANE_KIND,
    LANE_QUEUE,
    LAPSED,
    PARKED,
    PARKED_AT,
)
from drain.tables.heads import heads
from drain.tables.pauses import IS_PAUSED, Pauses
from drain.tables.waiting import NEXT_ATTEMPTS

_MOST_QUEUES = 2000
CAUSES_OF = {
    "scheduled": ("scheduled",),
    "blocked": ("blocked",),
    "ready": ("paused", "limited", "rate", "list_full", "due"),
    "queued": ("queued",),
    "retrying": ("retrying", "called_back"),
    "parked": ("parked",),
}
Waiting: TypeAlias = dict[str, int]

_LANE = f"""
(SELECT id, job_name, key FROM staged_jobs_ready AS job
 WHERE {DUE} AND {LANE_KIND} = {{kind}} AND job.{LANE_QUEUE} = known.queue
 ORDER BY priority, id LIMIT %(up_to)s::bigint)
"""
_GROUPS = f"""
SELECT known.queue, job_name, key, count(*)
FROM pg_catalog.unnest(%(queues)s::text[]) AS known (queue),
    LATERAL ({" UNION ALL ".join(_LANE.format(kind=kind) for kind in lanes.KINDS)}) AS first_rows
GROUP BY known.queue, job_name, key ORDER BY min(id)
"""
# Due rows wait for the leader.
_SCHEDULED = f"""
SELECT queue, count(*) FILTER (WHERE scheduled_at > now()), count(*) FILTER (WHERE scheduled_at <= now()) FROM (
    SELECT queue, scheduled_at FROM staged_jobs_scheduled WHERE scheduled_at < {BLOCKED_AT}
    ORDER BY scheduled_at LIMIT %(up_to)s::bigint) AS job
GROUP BY queue
"""
_BLOCKED = f"""
SELECT queue, count(*) FROM (
    SELECT queue FROM staged_jobs_scheduled WHERE {IS_BLOCKED} LIMIT %(up_to)s::bigint) AS job
GROUP BY queue
"""
# Their worker died or hung; the leader will redeliver them.
_LAPSED = f"""
SELECT queue, count(*) FROM (
    SELECT queue FROM inflight_jobs WHERE {LAPSED} LIMIT %(up_to)s::bigint) AS job GROUP BY queue
"""
_DELIVERED = f"""{heads("inflight_jobs", DELIVERED, "delivery")}
SELECT found.queue, rows.number
FROM (SELECT queue FROM (SELECT queue FROM heads LIMIT %(most)s::bigint) AS first_heads
    UNION SELECT pg_catalog.unnest(%(named)s::text[])) AS found, LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM inflight_jobs AS job WHERE {DELIVERED} AND job.queue = found.queue
        LIMIT %(up_to)s::bigint) AS counted) AS rows
WHERE rows.number > 0
"""
_WAITING = f"""{NEXT_ATTEMPTS}
SELECT heads.queue, rows.number, rows.held, parked.number FROM heads, LATERAL (
    SELECT count(*) AS number, count(*) FILTER (WHERE due AND {{is_paused}}) AS held FROM (
        SELECT queue, job_name, key, next_run_at <= now() AS due FROM inflight_jobs AS waiting
        WHERE next_run_at < {PARKED_AT} AND waiting.queue = heads.queue
        ORDER BY queue, next_run_at LIMIT %(up_to)s::bigint) AS job) AS rows, LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM inflight_jobs AS waiting WHERE {PARKED} AND waiting.queue = heads.queue
        LIMIT %(up_to)s::bigint) AS job) AS parked
"""


def count_waiting(
    connection: Connection, up_to: int, *, named: Collection[str] | None = None
) -> dict[str, Waiting]:
    """Count waiting jobs by queue and cause.

    Args:
        connection: With sequential scans off.
        up_to: Rows read per queue, lane or state; a count that reaches it is a lower bound.
        named: Queues always counted, others up to a bound; None counts all.
    """
    pauses = Pauses(paused.read(connection))
    found: defaultdict[str, Waiting] = defaultdict(dict)
    for queue, scheduled, come_due in connection.execute(_SCHEDULED, {"up_to": up_to}):
        _add(found[queue], "scheduled", scheduled, up_to)
        _add(found[queue], "due", come_due, up_to)
    for queue, number in connection.execute(_BLOCKED, {"up_to": up_to}):
        _add(found[queue], "blocked", number, up_to)
    most = None if named is None else _MOST_QUEUES
    delivered = count_delivered(connection, up_to, most=most, named=named or ())
    for queue, number in delivered.items():
        _add(found[queue], "queued", number, up_to)
    for queue, number in connection.execute(_LAPSED.encode(), {"up_to": up_to}):
        _add(found[queue], "queued", number, up_to)
    for queue, number, held, parked in _count_retries(connection, up_to, is_paused=bool(pauses)):
        _add(found[queue], "retrying", number - held, up_to)
        _add(found[queue], "parked", parked, up_to)
        _add(found[queue], "called_back", held, up_to)
    due = lanes.count_due(connection, up_to, most=most, named=named or ())
    rules = ruled.read_of(connection, due)
    judged = [queue for queue in due if queue in rules or pauses.queue(queue) or pauses.names_any(queue)]
    standings = {queue: Standing(delivered=delivered.get(queue, 0)) for queue in judged}
    standings |= read_standings(connection, rules.values(), pauses, heads=up_to)
    counted: set[tuple[str, str]] = set()
    for queue, job_name, key, number in _groups(connection, judged, up_to):
        cause = cause_of(rules.get(queue), standings[queue], pauses, (queue, job_name, key))
        one = number
        # One job per key at a time; the others wait for the first.
        if queue in rules and rules[queue].ordered and key is not None and cause != "paused":
            one = 0 if (queue, key) in counted else 1
            counted.add((queue, key))
        _add(found[queue], cause, one, up_to)
        _add(found[queue], "limited", number - one, up_to)
    for queue in due.keys() - judged:
        _add(found[queue], "list_full" if delivered.get(queue) else "due", due[queue], up_to)
    return {queue: {cause: by[cause] for cause in CAUSES if cause in by} for queue, by in found.items() if by}


def count_delivered(
    connection: Connection, up_to: int, *, most: int | None = None, named: Collection[str] = ()
) -> dict[str, int]:
    """Count delivered jobs by queue, up to a bound."""
    parameters = {"up_to": up_to, "most": most, "named": list(named)}
    return dict(connection.execute(_DELIVERED.encode(), parameters).fetchall())


def _add(waiting: Waiting, cause: str, number: int, up_to: int) -> None:
    if total := min(up_to, waiting.get(cause, 0) + number):
        waiting[cause] = total


def _count_retries(
    connection: Connection, up_to: int, *, is_paused: bool
) -> Iterable[tuple[str, int, int, int]]:
    statement = _WAITING.format(is_paused=IS_PAUSED if is_paused else "false")
    return connection.execute(statement.encode(), {"up_to": up_to}).fetchall()


def _groups(
    connection: Connection, queues: Collection[str], up_to: int
) -> list[tuple[str, str, str | None, int]]:
    return connection.execute(_GROUPS, {"queues": list(queues), "up_to": up_to}).fetchall() if queues else []
