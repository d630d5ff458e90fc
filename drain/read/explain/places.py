"""Staged jobs ahead of one, up to a bound."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.read.causes import MOST
from drain.tables import keyed
from drain.tables.columns import DUE, LANE_KIND, LANE_QUEUE
from drain.tables.heads import heads
from drain.tables.keyed import Paused, Wanted
from drain.tables.lanes import KINDS
from drain.tables.rules import RulesRow

_OF_LANE = f"""
(SELECT FROM staged_jobs_ready WHERE {DUE} AND {LANE_KIND} = {{kind}} AND {LANE_QUEUE} = %(queue)s
    AND (priority, id) < (%(priority)s::integer, %(id)s::bigint) LIMIT {MOST + 1})
"""
_IN_QUEUE = f"""
SELECT count(*) FROM ({" UNION ALL ".join(_OF_LANE.format(kind=kind) for kind in KINDS)}) AS before
"""
_IN_KEY = f"""
SELECT count(*) FROM (
    SELECT FROM staged_jobs_ready WHERE {DUE} AND queue = %(queue)s AND key = %(key)s
        AND (priority, id) < (%(priority)s::integer, %(id)s::bigint) LIMIT {MOST + 1}) AS before
"""
_KEYS = f"""{heads("staged_jobs_ready", f"{DUE} AND key IS NOT NULL AND queue = %(queue)s", by="key")}
SELECT count(*) FROM (SELECT FROM heads LIMIT 1000) AS keys
"""
_RETRIES = f"""
SELECT count(*) FROM (
    SELECT FROM inflight_jobs WHERE next_run_at IS NOT NULL AND queue = %(queue)s
        AND next_run_at < %(next_run_at)s::timestamptz LIMIT {MOST + 1}) AS before
"""

_MOST_PRIORITIES = 100


class Place(NamedTuple):
    """Place of a staged job.

    Attributes:
        in_queue: Jobs ahead in the queue, or more if above `MOST`.
        in_key: Jobs ahead in its key.
        keys: Keys that take turns, at most 1,000; 0 unless fair.
    """

    in_queue: int
    in_key: int
    keys: int = 0

    @property
    def before(self) -> int:
        """Most jobs that can start first; if fair, one per key and turn."""
        return self.keys * (self.in_key + 1) - 1 if self.keys else self.in_queue

    @property
    def is_bounded(self) -> bool:
        """True if the numbers are exact."""
        return max(self.in_queue, self.in_key) <= MOST

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {"in_queue": self.in_queue, "in_key": self.in_key, "more": not self.is_bounded}


def place_of(connection: Connection, job: Mapping[str, Any], due_at: datetime, rules: RulesRow) -> Place:
    """Count the staged jobs ahead."""
    if rules.aging_seconds:
        return _place_with_aging(connection, job, due_at, rules.aging_seconds)
    parameters = {name: job[name] for name in ("queue", "key", "priority", "id")}
    (in_queue,) = fetch_one(connection, _IN_QUEUE, parameters)
    if job["key"] is None:
        return Place(min(in_queue, MOST + 1), 0)
    (in_key,) = fetch_one(connection, _IN_KEY, parameters)
    (keys,) = fetch_one(connection, _KEYS, parameters) if rules.fair else (0,)
    return Place(min(in_queue, MOST + 1), in_key, keys)


def _place_with_aging(
    connection: Connection, job: Mapping[str, Any], due_at: datetime, aging_seconds: float
) -> Place:
    """Count in the order of `AgingLanes`."""
    heads = keyed.heads_of_lanes(connection, job["queue"], KINDS, Paused(), each=True, limit=_MOST_PRIORITIES)
    wanted = [Wanted("", (head.priority, head.id - 1), MOST + 1, head.kind, head.priority) for head in heads]
    own = (job["priority"] * aging_seconds + due_at.timestamp(), job["id"])
    before = sum(
        (priority * aging_seconds + due, job_id) < own
        for found in keyed.read_lanes(connection, job["queue"], wanted, Paused())
        for (priority, job_id), due in found
    )
    return Place(min(before, MOST + 1), 0)


def retries_before(connection: Connection, job: Mapping[str, Any]) -> int:
    """Count the queue's earlier retries."""
    parameters = {"queue": job["queue"], "next_run_at": job["next_run_at"]}
    (before,) = fetch_one(connection, _RETRIES, parameters)
    return int(before)


def number(count: int) -> str:
    """Format a bounded count."""
    return f"more than {MOST:,}" if count > MOST else f"{count:,}"
