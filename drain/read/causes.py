"""Obstacles: how much of the rules of a queue is in use, and so the cause for which a row waits.

Only the leader decides who is next, from counters in its memory. Here the same is worked out from the tables, for
people, metrics and the audit. Each count is bounded: beyond `MOST` rows it means that number or more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeAlias

from drain.database.postgres import Connection, fetch_one
from drain.tables.cancellations import HAS_PLACE
from drain.tables.columns import DELIVERED, IS_CLAIMED
from drain.tables.pauses import Pauses
from drain.tables.rules import Bucket, RulesRow

# Upper bound of the rows that one question reads.
MOST = 10_000
# A rate is used up if this part of what it allows has ended lately: jobs end some time after they have begun.
_USED_UP = 0.7

# Queue, job name and key of a job: all that pauses and rules ask for.
Job: TypeAlias = tuple[str, str, str | None]
# Causes for which a row waits, as `drain status --json` and the metric spell them.
CAUSES = (
    "scheduled",
    "paused",
    "limited",
    "rate",
    "list_full",
    "due",
    "queued",
    "retrying",
    "called_back",
)
# Jobs of a queue that count as running, the ones with the oldest deliveries and leases first; cancelled ones last.
_RUNNING = f"""
SELECT id, key, claimed_by, lease_expires_at IS NULL AS is_delivered,
    CASE WHEN lease_expires_at IS NULL THEN moved_at ELSE claimed_at END AS since
FROM (
    (SELECT * FROM inflight_jobs WHERE {DELIVERED} AND queue = %(queue)s ORDER BY delivery LIMIT {MOST})
    UNION ALL
    (SELECT * FROM (
        SELECT * FROM inflight_jobs WHERE {IS_CLAIMED} ORDER BY lease_expires_at DESC LIMIT {MOST}
    ) AS claimed WHERE queue = %(queue)s AND next_run_at IS NULL)
) AS running
UNION ALL
(SELECT id, key, claimed_by, false, claimed_at FROM cancelled_claims WHERE {HAS_PLACE} LIMIT {MOST})
"""
_COUNT_RUNNING = f"SELECT key, is_delivered, count(*) FROM ({_RUNNING}) AS counted GROUP BY key, is_delivered"
_WAITING_KEYS = f"""
SELECT key FROM (
    SELECT key FROM inflight_jobs WHERE next_run_at IS NOT NULL AND queue = %(queue)s
    ORDER BY queue, next_run_at LIMIT {MOST}) AS waiting WHERE key IS NOT NULL
"""
_DEAD_KEYS = f"""
SELECT key FROM dead_jobs WHERE queue = %(queue)s AND key IS NOT NULL AND reason <> 'cancelled' LIMIT {MOST}
"""
_FINISHED_SINCE = f"""
SELECT count(*) FROM (
    SELECT FROM finished_jobs
    WHERE queue = %(queue)s AND finished_at > now() - make_interval(secs => %(window)s::float8)
    LIMIT {MOST}) AS finished
"""


class Running(NamedTuple):
    """Job that counts as running: delivered, or claimed by a worker; `since` the one or the other."""

    id: int
    key: str | None
    worker: str | None
    is_delivered: bool
    since: datetime


@dataclass(slots=True)
class Standing:
    """Use of a queue's rules at one instant.

    Attributes:
        running: Jobs that are delivered or claimed.
        delivered: Those of them that wait for a worker.
        is_full: As many jobs run as the queue may run at a time, or the leader holds the queue.
        full_keys: Keys of which no job may be admitted now: their limit is full; or the queue is ordered, and they have
            a job in flight, or a dead one that holds them.
        rate_is_used_up: As many jobs have ended lately as the rate allows to begin.
    """

    running: int = 0
    delivered: int = 0
    is_full: bool = False
    full_keys: set[str] = field(default_factory=set)
    rate_is_used_up: bool = False


def read_running(connection: Connection, queue: str) -> list[Running]:
    """Read the jobs of a queue that count as running, the oldest first; of the delivered ones the first `MOST`."""
    rows = connection.execute(f"{_RUNNING} ORDER BY since", {"queue": queue}, binary=True)
    return [Running._make(row) for row in rows]


def read_standing(connection: Connection, rules: RulesRow) -> Standing:
    """Find out how much of these rules is in use."""
    standing, of_keys = Standing(), Counter[str]()
    for key, is_delivered, number in connection.execute(_COUNT_RUNNING, {"queue": rules.queue}):
        standing.running += number
        standing.delivered += number if is_delivered else 0
        if key is not None:
            of_keys[key] += number
    if rules.error is not None:
        standing.is_full = True
        return standing
    standing.is_full = rules.running is not None and standing.running >= rules.running
    if (most := rules.running_per_key) is not None:
        standing.full_keys = {key for key, number in of_keys.items() if number >= most}
    if rules.ordered:
        standing.full_keys |= {*of_keys, *_keys(connection, _WAITING_KEYS, rules.queue)}
        if rules.on_dead == "hold":
            standing.full_keys |= set(_keys(connection, _DEAD_KEYS, rules.queue))
    if (bucket := rules.bucket) is not None:
        standing.rate_is_used_up = _is_used_up(connection, rules.queue, bucket)
    return standing


def cause_of(rules: RulesRow | None, standing: Standing, pauses: Pauses, job: Job) -> str:
    """Name the cause for which a due row waits, one of `CAUSES`.

    Args:
        rules: Of the row's queue; None if it has none.
        standing: Of that queue.
        pauses: All that hold.
        job: Queue, job name and key of the row.
    """
    *_, key = job
    if pauses.applies(*job):
        return "paused"
    if rules is not None:
        if standing.is_full or key in standing.full_keys:
            return "limited"
        if standing.rate_is_used_up:
            return "rate"
    if standing.delivered:
        return "list_full"
    # Nothing else is known to hold it.
    return "rate" if rules is not None and rules.rate_per_key and key is not None else "due"


def _keys(connection: Connection, statement: str, queue: str) -> Sequence[str]:
    return [key for (key,) in connection.execute(statement.encode(), {"queue": queue})]


def _is_used_up(connection: Connection, queue: str, bucket: Bucket) -> bool:
    parameters = {"queue": queue, "window": bucket.burst / bucket.per_second + 1}
    (finished,) = fetch_one(connection, _FINISHED_SINCE, parameters)
    return int(finished) >= min(MOST, max(1.0, _USED_UP * bucket.burst))
