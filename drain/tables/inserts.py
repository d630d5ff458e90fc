"""INSERTs of jobs, for `drain.jobs.executors`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from drain.tables.columns import BLOCKED_AT

ARGUMENTS = "arguments"
# Typed, or another role's operator could fit better.
_OWN = {
    "key": "item -> 2 ->> CAST('key' AS text)",
    "unique_key": "item -> 2 ->> CAST('unique_key' AS text)",
    "keep": "item -> 2 ->> CAST('keep' AS text)",
    "quiet_seconds": "CAST(item -> 2 ->> CAST('quiet_seconds' AS text) AS double precision)",
}
_TYPES = {
    "job_args": "jsonb",
    "job_kwargs": "jsonb",
    "context": "jsonb",
    "scheduled_at": "timestamptz",
    "expires_at": "timestamptz",
    "priority": "integer",
    "max_attempts": "integer",
    "timeout_seconds": "integer",
    "quiet_seconds": "double precision",
}
_FLOW = "CAST(%(flow)s AS bigint)"
_JOINED = (
    f"joined AS MATERIALIZED (SELECT drain_join({_FLOW}, pg_catalog.array_agg(id), "
    "pg_catalog.array_agg(CAST(%(node)s AS text))) FROM numbered), "
)
# An id, or the name of a node.
_PARENT = (
    f"CASE jsonb_typeof(pair -> 0) WHEN 'string' THEN drain_node({_FLOW}, pair ->> 0) "
    "ELSE CAST(pair ->> 0 AS bigint) END"
)
_ELEMENTS = f"jsonb_array_elements(CAST(%({ARGUMENTS})s AS jsonb)) WITH ORDINALITY AS given (item, position)"
_WAITS = "item -> -1 <> CAST('[]' AS jsonb)"


@lru_cache(maxsize=500)
def insert_one(columns: tuple[str, ...]) -> str:
    """Build the INSERT of a job; `columns` must be constants, never input."""
    values = _values(columns, {})
    return f"INSERT INTO staged_jobs ({', '.join(values)}) VALUES ({', '.join(values.values())}) RETURNING id"


@lru_cache(maxsize=500)
def insert_many(columns: tuple[str, ...], *, own_keys: bool) -> str:
    """Build the INSERT of elements `[args, kwargs]` of `arguments`, ids in order.

    Args:
        columns: Constants.
        own_keys: Elements have a third item, the row's own keys.
    """
    values = _values_of_elements(columns, own_keys=own_keys)
    return f"{_insert(values)} FROM {_ELEMENTS} ORDER BY position RETURNING id"


@lru_cache(maxsize=500)
def insert_dependent(columns: tuple[str, ...], *, own_keys: bool, joins: bool = False) -> str:
    """Build as `insert_many`, for elements that end in predecessors: `[[id, on_failure], ...]`.

    One statement, so that autocommit commits no job without its edges. `drain_after` sees the new rows: a volatile
    function has its own snapshots, and the aggregates have read all rows.

    Args:
        columns: Constants.
        own_keys: Elements have a third item, the row's own keys.
        joins: The jobs become members of a `flow`, perhaps as its `node`.
    """
    values = _values_of_elements(columns, own_keys=own_keys)
    start = values.get("scheduled_at")
    values["scheduled_at"] = f"CASE WHEN {_WAITS} THEN {BLOCKED_AT} ELSE {start or 'now()'} END"
    if start is not None:
        values["starts_at"] = f"CASE WHEN {_WAITS} THEN {start} END"
    first, parent = ("joined, ", _PARENT) if joins else ("", "CAST(pair ->> 0 AS bigint)")
    return (
        f"WITH given AS MATERIALIZED (SELECT item, position FROM {_ELEMENTS}), "
        f"staged AS ({_insert(values)} FROM given ORDER BY position RETURNING id), "
        "numbered AS (SELECT id, row_number() OVER (ORDER BY id) AS position FROM staged), "
        f"{_JOINED if joins else ''}"
        "dependent AS MATERIALIZED (SELECT drain_after(pg_catalog.array_agg(numbered.id), "
        f"pg_catalog.array_agg({parent}), pg_catalog.array_agg(pair ->> 1)) "
        f"FROM {first}numbered JOIN given USING (position), jsonb_array_elements(item -> -1) AS edge (pair)) "
        f"SELECT pg_catalog.unnest(ARRAY (SELECT id FROM {first}numbered, dependent ORDER BY id))"
    )


def _insert(values: Mapping[str, str]) -> str:
    return f"INSERT INTO staged_jobs ({', '.join(values)}) SELECT {', '.join(values.values())}"


def _values_of_elements(columns: tuple[str, ...], *, own_keys: bool) -> dict[str, str]:
    arguments = {"job_args": "item -> 0", "job_kwargs": "item -> 1"}
    return arguments | _values(columns, _OWN if own_keys else {})


def _values(columns: tuple[str, ...], own: Mapping[str, str]) -> dict[str, str]:
    values = {column: f"CAST(%({column})s AS {_TYPES.get(column, 'text')})" for column in columns}
    values |= own
    if "quiet_seconds" in values:
        begin = values.get("scheduled_at", "now()")
        values["scheduled_at"] = f"{begin} + make_interval(secs => coalesce({values['quiet_seconds']}, 0))"
    return values
