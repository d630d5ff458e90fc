"""INSERTs of jobs, for `drain.jobs.executors`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

ARGUMENTS = "arguments"
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
    values = {"job_args": "item -> 0", "job_kwargs": "item -> 1"} | _values(columns, _OWN if own_keys else {})
    return (
        f"INSERT INTO staged_jobs ({', '.join(values)}) SELECT {', '.join(values.values())} "
        f"FROM jsonb_array_elements(CAST(%({ARGUMENTS})s AS jsonb)) WITH ORDINALITY AS given (item, position) "
        "ORDER BY position RETURNING id"
    )


def _values(columns: tuple[str, ...], own: Mapping[str, str]) -> dict[str, str]:
    values = {column: f"CAST(%({column})s AS {_TYPES.get(column, 'text')})" for column in columns}
    values |= own
    if "quiet_seconds" in values:
        begin = values.get("scheduled_at", "now()")
        values["scheduled_at"] = f"{begin} + make_interval(secs => coalesce({values['quiet_seconds']}, 0))"
    return values
