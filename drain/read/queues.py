"""Numbers of all queues at one instant.

Each query reads a few index entries per queue or a bounded part of a table. `Queue.estimates` names inexact numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from drain.database.postgres import Connection
from drain.read import states, waiting_by_cause
from drain.read.queue import RATE_SECONDS, Queue
from drain.tables import lanes, pauses, rules as ruled, waiting
from drain.tables.columns import DELIVERED, LAPSED, RUNNING, finite
from drain.tables.heads import heads
from drain.tables.waiting import WAITS_SINCE

# Counted individually, largest first.
MOST_QUEUES = 1000
# Waiting jobs read per queue, and in all: measured, 10,000 in each of 50 queues take five times as long as 1,000.
UP_TO = 10_000
_FEW = 100
_OF_ALL = 20_000
# The lowest delivery numbers usually waited longest. The array compares time and id as one.
_OLDEST_QUEUED = f"""{heads("inflight_jobs", DELIVERED, "delivery")}
SELECT queue, first[2], (date_part('epoch', clock_timestamp()) * 1000000)::bigint - first[1] FROM (
    SELECT queue, pg_catalog.min(ARRAY[(date_part('epoch', since) * 1000000)::bigint, id]) AS first FROM (
        SELECT oldest.* FROM heads, LATERAL (
            SELECT queue, id, {WAITS_SINCE} AS since FROM inflight_jobs AS job
            WHERE {DELIVERED} AND job.queue = heads.queue ORDER BY job.delivery LIMIT 20) AS oldest
        UNION ALL
        (SELECT queue, id, {WAITS_SINCE} FROM inflight_jobs WHERE {LAPSED} LIMIT %(up_to)s::bigint)) AS waits
    GROUP BY queue) AS longest
"""
_COMING_DUE = """
SELECT queue, date_part('epoch', clock_timestamp() - min(scheduled_at)) FROM (
    SELECT queue, scheduled_at FROM staged_jobs_scheduled WHERE scheduled_at <= now()
    ORDER BY scheduled_at LIMIT %(up_to)s::bigint) AS job GROUP BY queue
"""
# At most the jobs that workers hold.
_RUNNING = f"""
SELECT queue, count(*) FROM (
    SELECT queue FROM inflight_jobs WHERE {RUNNING} LIMIT %(up_to)s::bigint) AS claimed GROUP BY queue
"""
_LATEST_DEAD = """
SELECT queue, count(*) FROM (SELECT queue FROM dead_jobs ORDER BY id DESC LIMIT %(up_to)s::bigint) AS job GROUP BY queue
"""
_YESTERDAY = """(date_trunc('day', now() AT TIME ZONE 'UTC') - interval '1 day') AT TIME ZONE 'UTC'"""
# Since yesterday: a partition's bound, so that no row is skipped.
_FINISHED = f"""
WITH RECURSIVE heads AS (
    (SELECT queue, finished_at FROM finished_jobs
     WHERE finished_at >= {_YESTERDAY}
     ORDER BY queue DESC, finished_at DESC LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads, LATERAL (
        SELECT queue, finished_at FROM finished_jobs
        WHERE queue < heads.queue
            AND finished_at >= {_YESTERDAY}
        ORDER BY queue DESC, finished_at DESC LIMIT 1) AS following
)
SELECT heads.queue, lately.number, lately.seconds FROM heads, LATERAL (
    SELECT count(*) AS number, date_part('epoch', clock_timestamp() - {finite("min(finished_at)")}) AS seconds FROM (
        SELECT finished_at FROM finished_jobs AS job
        WHERE job.queue = heads.queue AND job.finished_at > now() - make_interval(secs => {RATE_SECONDS})
        ORDER BY finished_at DESC LIMIT %(up_to)s::bigint) AS counted) AS lately
WHERE heads.finished_at > now() - make_interval(secs => {RATE_SECONDS})
"""


def read(connection: Connection) -> dict[str, Queue]:
    """Read all queues, without Redis; among very many, those without rules or pauses may be missing.

    Args:
        connection: In a `snapshot`.
    """
    queues: defaultdict[str, Queue] = defaultdict(Queue)
    counted = states.count(connection)
    for state, numbers in counted.items():
        for name, number in numbers.by_queue.items():
            setattr(queues[name], state, number)
            if not numbers.are_exact:
                queues[name].estimates.add(state)
    _read_causes(connection, queues, counted)
    _read_others(connection, queues, counted)
    _read_times(connection, queues)
    for retrying in waiting.retrying_queues(connection):
        queues[retrying.queue].failing = retrying.failing
    for rules in (
        ruled.read(connection, most=MOST_QUEUES + 1) | ruled.read_of(connection, list(queues))
    ).values():
        queues[rules.queue].rules = rules
    for pause in reversed(pauses.longest_first(pauses.read(connection))):
        if pause.queue is not None and pause.job_name is None and pause.key is None:
            queues[pause.queue].paused = pause
    return dict(queues)


def _read_causes(
    connection: Connection,
    queues: Mapping[str, Queue],
    counted: Mapping[str, states.Numbers],
) -> None:
    names = list(queues)
    many = (
        sorted(names, key=lambda name: -queues[name].jobs)[:MOST_QUEUES] if len(names) > MOST_QUEUES else None
    )
    up_to = max(_FEW, min(UP_TO, _OF_ALL // max(1, len(many or names))))
    seen = waiting_by_cause.count_waiting(connection, up_to, named=many)
    totals = {state: sum(each.get(state, 0) for each in seen.values()) for state in ("scheduled", "blocked")}
    for name, by_cause in seen.items():
        for state, causes in waiting_by_cause.CAUSES_OF.items():
            first = {cause: by_cause[cause] for cause in causes if cause in by_cause}
            # Small counts are complete, except among very many queues.
            number = totals.get(state, sum(first.values()))
            are_all = number < up_to and (many is None or name in many)
            _set(queues[name], state, sum(first.values()), counted[state], are_all=are_all)
            _divide(queues[name], state, first, are_all=are_all)


def _read_others(
    connection: Connection, queues: Mapping[str, Queue], counted: Mapping[str, states.Numbers]
) -> None:
    for state, statement in (("running", _RUNNING), ("dead", _LATEST_DEAD)):
        if not counted[state].are_exact:
            first = dict(connection.execute(statement, {"up_to": UP_TO}).fetchall())
            for name in first.keys() | counted[state].by_queue:
                are_all = sum(first.values()) < UP_TO
                _set(queues[name], state, first.get(name, 0), counted[state], are_all=are_all)


def _set(queue: Queue, state: str, seen: int, counted: states.Numbers, *, are_all: bool) -> None:
    setattr(queue, state, seen if are_all else max(seen, getattr(queue, state)))
    if are_all or counted.are_exact:
        queue.estimates.discard(state)
    else:
        queue.estimates.add(state)


def _divide(queue: Queue, state: str, first: Mapping[str, int], *, are_all: bool) -> None:
    seen = sum(first.values())
    for cause, part in first.items():
        queue.waiting[cause] = round(part / seen * getattr(queue, state))
        if state in queue.estimates or (len(first) > 1 and not are_all):
            queue.estimates.add(cause)


def _read_times(connection: Connection, queues: Mapping[str, Queue]) -> None:
    bound = {"up_to": UP_TO}
    for name, seconds in (
        *lanes.oldest_due_seconds(connection).items(),
        *connection.execute(_COMING_DUE, bound).fetchall(),
    ):
        queues[name].ready_seconds = max(0.0, seconds, queues[name].ready_seconds)
    for name, job_id, microseconds in connection.execute(_OLDEST_QUEUED, bound):
        queues[name].oldest_queued_id = job_id
        queues[name].queued_seconds = max(0, microseconds) / 1_000_000
    for name, seconds in connection.execute(waiting.DUE_RETRIES):
        queues[name].retrying_seconds = max(0.0, seconds)
    for name, number, seconds in connection.execute(_FINISHED, bound):
        # At the bound, that many finished in a known, shorter time.
        queues[name].per_second = number / (max(seconds, 0.001) if number >= UP_TO else RATE_SECONDS)
