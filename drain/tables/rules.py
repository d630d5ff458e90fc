"""Rules of queues: the rows of `queues`, which the leader reads and people and applications change.

Statements that run in an application's transaction name their parameters `%(name)s`; `drain.jobs.callers` executes
them on any connection, so JSON travels as text in both directions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from drain.database.postgres import Connection


class RulesRow(NamedTuple):
    """Row of `queues`: the rules of one queue, as texts and numbers. `schema.sql` says what each column means."""

    queue: str
    running: int | None
    running_per_key: int | None
    rate: str | None
    rate_per_key: str | None
    burst: int | None
    fair: bool
    weights: Mapping[str, int | float]
    ordered: bool
    on_dead: str
    aging_seconds: float | None


# Columns that are rules, and the type of each.
TYPES = {
    "running": "integer",
    "running_per_key": "integer",
    "rate": "text",
    "rate_per_key": "text",
    "burst": "integer",
    "fair": "boolean",
    "weights": "jsonb",
    "ordered": "boolean",
    "on_dead": "text",
    "aging_seconds": "double precision",
}
_COLUMNS = f"queue, {', '.join(TYPES)}".replace("weights", "CAST(weights AS text)")
READ_ALL = f"SELECT {_COLUMNS} FROM queues ORDER BY queue"
READ = f"SELECT {_COLUMNS} FROM queues WHERE queue = %(queue)s"
DELETE = "DELETE FROM queues WHERE queue = %(queue)s RETURNING queue"


def read(connection: Connection) -> dict[str, RulesRow]:
    """Read the rules of all queues that have any, by the name of the queue."""
    return {row.queue: row for row in map(row_of, connection.execute(READ_ALL))}


def row_of(values: Collection[Any]) -> RulesRow:
    """Make a row of the values that `READ` or `READ_ALL` returns."""
    row = RulesRow._make(values)
    return row._replace(weights=json.loads(str(row.weights)))


def upsert(columns: Collection[str]) -> str:
    """Build the statement that gives a queue these rules, and leaves its others as they are.

    Two transactions that change different rules of one queue at once both have their way; CHECKs of the table refuse
    the second one if its rule contradicts the first one's.

    Args:
        columns: Names of rules; each is a parameter too, `weights` as a JSON text.
    """
    names = [name for name in TYPES if name in columns]
    values = ", ".join(f"CAST(%({name})s AS {TYPES[name]})" for name in names)
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in names)
    return f"""
INSERT INTO queues (queue, {", ".join(names)}) VALUES (%(queue)s, {values})
ON CONFLICT (queue) DO UPDATE SET {changes}, changed_at = clock_timestamp()
RETURNING queue
"""
