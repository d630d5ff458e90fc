"""Rule usage of each queue, and why a row waits.

Derived from the tables, because the leader keeps its counters in memory. Counts stop at `MOST` rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from drain.database.postgres import Connection
from drain.read.tokens import Tokens, Whose, read_lacking
from drain.tables.cancellations import KEEPS_PLACE
from drain.tables.columns import DELIVERED, DUE, IS_CLAIMED, LANE_KIND, LANE_QUEUE
from drain.tables.lanes import PATIENT_WITH_KEY, URGENT_WITH_KEY
from drain.tables.pauses import Pauses
from drain.tables.rules import RulesRow

MOST = 10_000

# Queue, job name and key.
Job: TypeAlias = tuple[str, str, str | None]
# Causes in display order, and their labels.
CAUSES: Mapping[str, str] = {
    "paused": "paused",
    "called_back": "called back",
    "limited": "limited",
    "rate": "rate-limited",
    "list_full": "list full",
    "due": "due",
    "queued": "queued",
    "retrying": "retrying",
    "parked": "parked",
    "scheduled": "scheduled",
    "blocked": "blocked",
}
# No index covers the queue of a claimed job, so claims are read once for all queues.
_RUNNING = f"""
SELECT known.queue, job.id, job.key, job.claimed_by, true AS is_delivered, job.moved_at AS since
FROM pg_catalog.unnest(%(queues)s::text[]) AS known (queue), LATERAL (
    SELECT * FROM inflight_jobs AS delivered WHERE {DELIVERED} AND delivered.queue = known.queue
    ORDER BY delivery LIMIT {MOST}) AS job
UNION ALL
SELECT queue, id, key, claimed_by, false, claimed_at FROM (
    SELECT * FROM inflight_jobs WHERE {IS_CLAIMED} ORDER BY lease_expires_at DESC LIMIT {MOST}) AS claimed
WHERE next_run_at IS NULL AND queue = ANY (%(queues)s::text[])
UNION ALL
SELECT queue, id, key, claimed_by, false, claimed_at FROM cancelled_claims
WHERE {KEEPS_PLACE} AND queue = ANY (%(queues)s::text[])
"""
_COUNT_RUNNING = f"""
SELECT queue, key, count(*), count(*) FILTER (WHERE is_delivered) FROM ({_RUNNING}) AS running GROUP BY queue, key
"""
# A retry holds its key unless an earlier job with that key is due.
_FEW = 5
_WAITING_KEYS = f"""
SELECT known.queue, job.key FROM pg_catalog.unnest(%(queues)s::text[]) AS known (queue), LATERAL (
    SELECT id, key FROM inflight_jobs AS waiting WHERE next_run_at IS NOT NULL AND waiting.queue = known.queue
    ORDER BY queue, next_run_at LIMIT %(most)s::bigint) AS job WHERE job.key IS NOT NULL
    AND NOT EXISTS (
        SELECT FROM (
            SELECT id FROM staged_jobs_ready AS due
            WHERE {DUE} AND due.key IS NOT NULL AND due.queue = known.queue AND due.key = job.key
            ORDER BY queue, key, priority, id LIMIT {_FEW}) AS first WHERE first.id < job.id)
"""
_DEAD_KEYS = """
SELECT known.queue, job.key FROM pg_catalog.unnest(%(queues)s::text[]) AS known (queue), LATERAL (
    SELECT key FROM dead_jobs AS dead
    WHERE dead.queue = known.queue AND key IS NOT NULL AND reason <> 'cancelled' LIMIT %(most)s::bigint) AS job
"""
_FIRST_OF_KEYS = f"""
SELECT DISTINCT ON (known.queue, job.key) known.queue, job.job_name, job.key
FROM pg_catalog.unnest(%(queues)s::text[]) AS known (queue), pg_catalog.unnest(%(kinds)s::integer[]) AS lane (kind),
    LATERAL (
        SELECT id, job_name, key FROM staged_jobs_ready AS due
        WHERE {DUE} AND {LANE_KIND} = lane.kind AND due.{LANE_QUEUE} = known.queue
        ORDER BY priority, id LIMIT %(most)s::bigint) AS job
ORDER BY known.queue, job.key, job.id
"""


class Running(NamedTuple):
    """Job delivered or claimed at `since`."""

    id: int
    key: str | None
    worker: str | None
    is_delivered: bool
    since: datetime


@dataclass(slots=True)
class Standing:
    """Rule usage of a queue.

    Attributes:
        running: Delivered or claimed jobs.
        delivered: Those not yet claimed.
        is_full: The queue is at its limit, or held by the leader.
        full_keys: Keys at their limit, or ordered and held by a job in flight, paused or dead.
        rate_is_used_up: The queue has no tokens, or had none a moment ago.
        empty_keys: Keys whose rate is used up.
    """

    running: int = 0
    delivered: int = 0
    is_full: bool = False
    full_keys: set[str] = field(default_factory=set)
    rate_is_used_up: bool = False
    empty_keys: set[str] = field(default_factory=set)


def read_running(connection: Connection, queue: str) -> list[Running]:
    """Read a queue's running jobs, oldest first."""
    rows = connection.execute(f"{_RUNNING} ORDER BY since", {"queues": [queue]}, binary=True)
    return [Running._make(row) for _, *row in rows]


def read_standings(
    connection: Connection,
    rules: Collection[RulesRow],
    pauses: Pauses,
    most: int | None = MOST,
    heads: int | None = MOST,
) -> dict[str, Standing]:
    """Read the rule usage of these queues.

    Args:
        most: Dead and retrying jobs read per queue; None for all.
        heads: Due rows read per queue and lane; None for all.
    """
    found = {each.queue: Standing() for each in rules}
    of_keys: defaultdict[str, Counter[str]] = defaultdict(Counter)
    delivered_of: Counter[Whose] = Counter()
    for queue, key, number, delivered in connection.execute(_COUNT_RUNNING, {"queues": list(found)}):
        found[queue].running += number
        found[queue].delivered += delivered
        if key is not None:
            of_keys[queue][key] = number
            delivered_of[queue, key] = delivered
    followed = [each for each in rules if each.error is None]
    for each in rules:
        standing = found[each.queue]
        is_full = each.running is not None and standing.running >= each.running
        standing.is_full = is_full or each.error is not None
    for each in followed:
        if (limit := each.running_per_key) is not None:
            found[each.queue].full_keys = {
                key for key, number in of_keys[each.queue].items() if number >= limit
            }
        if each.ordered:
            found[each.queue].full_keys.update(of_keys[each.queue])
    ordered = [each for each in followed if each.ordered]
    for queue, key in _held_keys(connection, ordered, pauses, most, heads):
        found[queue].full_keys.add(key)
    lacking = read_lacking(connection, followed)
    for each in followed:
        _note_tokens(found[each.queue], each, lacking, delivered_of)
    return found


def _held_keys(
    connection: Connection,
    ordered: Collection[RulesRow],
    pauses: Pauses,
    most: int | None,
    heads: int | None,
) -> Iterator[tuple[str, str]]:
    kinds = {"kinds": [URGENT_WITH_KEY, PATIENT_WITH_KEY], "most": heads}
    yield from _rows(connection, _WAITING_KEYS, ordered, most=most)
    yield from _rows(connection, _DEAD_KEYS, [each for each in ordered if each.on_dead == "hold"], most=most)
    some_paused = [each for each in ordered if pauses.names_any(each.queue)]
    for queue, job_name, key in _rows(connection, _FIRST_OF_KEYS, some_paused, **kinds):
        if pauses.applies(queue, job_name, key):
            yield queue, key


def _note_tokens(
    standing: Standing, rules: RulesRow, lacking: Mapping[Whose, float], delivered_of: Counter[Whose]
) -> None:
    queue = rules.queue
    if bucket := rules.bucket:
        full_in = lacking.get((queue, None), 0.0)
        standing.rate_is_used_up = Tokens(bucket, full_in, standing.delivered).is_used_up
    if bucket := rules.bucket_of_key:
        for name, key in (*lacking, *delivered_of):
            whose, held = (name, key), delivered_of[name, key]
            if name == queue and key and Tokens(bucket, lacking.get(whose, 0.0), held).is_used_up:
                standing.empty_keys.add(key)


def _rows(
    connection: Connection, statement: str, rules: Collection[RulesRow], **parameters: Any
) -> Sequence[tuple[Any, ...]]:
    if not rules:
        return ()
    parameters["queues"] = [each.queue for each in rules]
    return connection.execute(statement.encode(), parameters).fetchall()


def cause_of(rules: RulesRow | None, standing: Standing, pauses: Pauses, job: Job) -> str:
    """Return why a due row waits."""
    *_, key = job
    if pauses.applies(*job):
        return "paused"
    if rules is not None:
        if standing.is_full or key in standing.full_keys:
            return "limited"
        if standing.rate_is_used_up or key in standing.empty_keys:
            return "rate"
    return "list_full" if standing.delivered else "due"
