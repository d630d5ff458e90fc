"""Staging: the INSERT of one job, and of many, in the parameter style of the application's driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Keys of one of many jobs: the third item of its element is an object of these columns.
_OWN = {
    "key": "item -> 2 ->> 'key'",
    "unique_key": "item -> 2 ->> 'unique_key'",
    "keep": "item -> 2 ->> 'keep'",
    "quiet_seconds": "CAST(item -> 2 ->> 'quiet_seconds' AS double precision)",
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


def insert_statement(columns: Sequence[str], placeholder: Callable[[str], str]) -> str:
    """Build the INSERT of one row into `staged_jobs`; columns that are left out get the schema's defaults.

    Args:
        columns: Names of the given columns; constants of ours, never an application's input.
        placeholder: Spells the placeholder of a column in the parameter style of the driver.
    """
    values = _values(columns, placeholder)
    return f"INSERT INTO staged_jobs ({', '.join(values)}) VALUES ({', '.join(values.values())}) RETURNING id"


def insert_many_statement(columns: Sequence[str], placeholder: Callable[[str], str]) -> str:
    """Build the INSERT of one row for each element of the JSON array `arguments`, as `[args, kwargs]`.

    All rows share the given columns. The ids come back in the order of the elements.
    """
    return _insert_many(_values(columns, placeholder), placeholder)


def insert_many_with_keys_statement(columns: Sequence[str], placeholder: Callable[[str], str]) -> str:
    """Build the same INSERT for elements with a third item, the columns of the keys of each row."""
    return _insert_many(_values(columns, placeholder, _OWN), placeholder)


def _insert_many(shared: dict[str, str], placeholder: Callable[[str], str]) -> str:
    values = {"job_args": "item -> 0", "job_kwargs": "item -> 1"} | shared
    elements = f"jsonb_array_elements(CAST({placeholder('arguments')} AS jsonb))"
    return (
        f"INSERT INTO staged_jobs ({', '.join(values)}) SELECT {', '.join(values.values())} "
        f"FROM {elements} WITH ORDINALITY AS given (item, position) ORDER BY position RETURNING id"
    )


def _values(
    columns: Sequence[str], placeholder: Callable[[str], str], own: dict[str, str] | None = None
) -> dict[str, str]:
    values = {column: f"CAST({placeholder(column)} AS {_TYPES.get(column, 'text')})" for column in columns}
    values |= own or {}
    if "quiet_seconds" in values:
        begin = values.get("scheduled_at", "now()")
        values["scheduled_at"] = f"{begin} + make_interval(secs => coalesce({values['quiet_seconds']}, 0))"
    return values
