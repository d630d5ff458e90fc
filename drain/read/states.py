"""Jobs by state and queue, from a bounded part of each table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import IS_BLOCKED, PARKED, QUEUED, RETRYING, RUNNING

# Pages of 8 KiB read per table, each with ten to a few hundred rows.
PAGES = 200
_PAGES = """
SELECT sum(pg_catalog.pg_relation_size(part.id))::bigint / 8192 FROM (
    SELECT %(table)s::regclass AS id UNION SELECT relid FROM pg_partition_tree(%(table)s::regclass)) AS part
"""
# A scheduled row is ready once it is due.
_STATES = {
    "staged_jobs_ready": {"ready": "true"},
    "staged_jobs_scheduled": {
        "scheduled": f"scheduled_at > now() AND NOT {IS_BLOCKED}",
        "blocked": IS_BLOCKED,
        "ready": "scheduled_at <= now()",
    },
    "inflight_jobs": {"running": RUNNING, "retrying": RETRYING, "parked": PARKED, "queued": QUEUED},
    "dead_jobs": {"dead": "true"},
}


@dataclass(frozen=True)
class Numbers:
    """Jobs by queue in one state.

    Inexact ones come from a fixed sample of the pages, and may miss queues with few jobs.
    """

    by_queue: Mapping[str, int]
    are_exact: bool


def count(connection: Connection) -> dict[str, Numbers]:
    """Count jobs by state and queue."""
    counted: defaultdict[str, dict[str, int]] = defaultdict(dict)
    exact: defaultdict[str, bool] = defaultdict(lambda: True)
    for table, states in _STATES.items():
        (pages,) = fetch_one(connection, _PAGES, {"table": table})
        share = min(1.0, PAGES / max(1, pages))
        columns = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in states.values())
        part = "TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (1)"
        statement = f"SELECT queue, {columns} FROM {table} {part} GROUP BY queue"
        rows = connection.execute(statement.encode(), {"percent": 100 * share}).fetchall()
        for place, state in enumerate(states, 1):
            exact[state] &= share == 1
            numbers = counted[state]
            for row in rows:
                if row[place]:
                    numbers[row[0]] = numbers.get(row[0], 0) + round(row[place] / share)
    return {state: Numbers(numbers, exact[state]) for state, numbers in counted.items()}
