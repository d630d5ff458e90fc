"""Rules of queues, read by the leader.

`drain.jobs.executors` needs parameters as `%(name)s`, and JSON as text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple

from drain.database.postgres import Connection
from drain.tables.followed import FollowedTable

# Units of a rate, in seconds.
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class RulesRow(NamedTuple):
    """Row of `queues`, see `schema.sql`; an `error` holds the queue."""

    queue: str
    running: int | None = None
    running_per_key: int | None = None
    rate: str | None = None
    rate_per_key: str | None = None
    burst: int | None = None
    fair: bool = False
    weights: Mapping[str, int | float] = MappingProxyType({})
    ordered: bool = False
    on_dead: str = "hold"
    aging_seconds: float | None = None
    error: str | None = None

    def same_rules(self, other: RulesRow) -> bool:
        """Compare the rules without `error`."""
        return self._replace(error=None) == other._replace(error=None)

    @property
    def bucket(self) -> Bucket | None:
        """Queue's token bucket."""
        return self._bucket(self.rate)

    @property
    def bucket_of_key(self) -> Bucket | None:
        """Each key's token bucket."""
        return self._bucket(self.rate_per_key)

    def _bucket(self, rate: str | None) -> Bucket | None:
        if rate is None:
            return None
        number, _, unit = rate.partition("/")
        per_second = int(number) / UNITS[unit]
        return Bucket(per_second, burst_of(self.burst, per_second))


class Bucket(NamedTuple):
    """Token bucket: one token per start."""

    per_second: float
    burst: int


def burst_of(burst: int | None, per_second: float) -> int:
    """Return the burst, by default one second's worth."""
    return burst or max(1, ceil(per_second))


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
_COLUMNS = f"queue, {', '.join(TYPES)}, error".replace("weights", "CAST(weights AS text)")
READ_ALL = f"SELECT {_COLUMNS} FROM queues ORDER BY queue"
_READ_SOME = f"SELECT {_COLUMNS} FROM queues ORDER BY error IS NULL, queue LIMIT %(most)s"
_READ_OF = f"SELECT {_COLUMNS} FROM queues WHERE queue = ANY (%(queues)s::text[]) ORDER BY queue"
READ = f"SELECT {_COLUMNS} FROM queues WHERE queue = %(queue)s"
DELETE = "DELETE FROM queues WHERE queue = %(queue)s RETURNING queue"
# Skips rows that another session is changing.
NOTE_ERRORS = """
UPDATE queues SET error = noted.error FROM unnest(%(queues)s::text[], %(errors)s::text[]) AS noted (name, error)
WHERE queue = noted.name AND queue = ANY (ARRAY (
    SELECT queue FROM queues WHERE queue = ANY (%(queues)s::text[]) FOR UPDATE SKIP LOCKED))
"""


def read(connection: Connection, *, most: int | None = None) -> dict[str, RulesRow]:
    """Read up to `most` rules, held queues first."""
    return {row.queue: row for row in map(row_of, connection.execute(_READ_SOME, {"most": most}))}


def read_of(connection: Connection, queues: Iterable[str]) -> dict[str, RulesRow]:
    """Read these queues' rules."""
    rows = connection.execute(_READ_OF, {"queues": list(queues)})
    return {row.queue: row for row in map(row_of, rows)}


def followed() -> FollowedTable[RulesRow]:
    """Return the table of all rules, not yet read."""
    return FollowedTable("queues", _COLUMNS, row_of)


def note_errors(connection: Connection, errors: Mapping[str, str | None]) -> None:
    """Record why rules cannot be applied; None if they can."""
    connection.execute(NOTE_ERRORS, {"queues": list(errors), "errors": list(errors.values())})


def row_of(values: Collection[Any]) -> RulesRow:
    """Convert a row of `READ` or `READ_ALL`."""
    row = RulesRow._make(values)
    return row._replace(weights=json.loads(str(row.weights)))


def insert(columns: Collection[str]) -> str:
    """Build the INSERT of rules; it returns a row unless one exists."""
    names = _in_order(columns)
    values = ", ".join(map(_value, names))
    return f"""
INSERT INTO queues (queue, {", ".join(names)}) VALUES (%(queue)s, {values})
ON CONFLICT (queue) DO NOTHING RETURNING queue
"""


def update(columns: Collection[str]) -> str:
    """Build the UPDATE; it returns a row if one exists.

    Concurrent changes of different rules both apply, unless a CHECK fails.
    """
    changes = ", ".join(f"{name} = {_value(name)}" for name in _in_order(columns))
    return (
        f"UPDATE queues SET {changes}, error = NULL, changed_at = clock_timestamp() "
        "WHERE queue = %(queue)s RETURNING queue"
    )


def _in_order(columns: Collection[str]) -> list[str]:
    return [name for name in TYPES if name in columns]


def _value(column: str) -> str:
    return f"CAST(%({column})s AS {TYPES[column]})"
