"""Columns of the job tables, and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drain.errors import ConfigError
from drain.pipeline.lake.files import DATE, JOBS
from drain.tables import bulk_flows, columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_JOB = {
    "id": "bigint",
    "job_name": "string",
    "job_args": "json",
    "job_kwargs": "json",
    "queue": "string",
    "priority": "int",
    "scheduled_at": "timestamp",
    "tag": "string",
    "context": "json",
    "staged_at": "timestamp",
    "fencing_token": "bigint",
    "history": "json",
    "key": "string",
    "staged_by": "string",
}
_UNIQUE = {"unique_key": "string", "keep": "string", "quiet_seconds": "double", "stands_for": "json"}
_LIMITS = {"expires_at": "timestamp", "max_attempts": "int", "timeout_seconds": "int"}

# JSON is transferred as text; Spark's own functions parse it.
TABLES = {
    "staged_jobs": _JOB
    | _LIMITS
    | _UNIQUE
    | {"matured_at": "timestamp", "salt": "bigint", "starts_at": "timestamp"},
    "inflight_jobs": _JOB
    | _LIMITS
    | _UNIQUE
    | {
        "moved_at": "timestamp",
        "delivery": "bigint",
        "attempts": "int",
        "claimed_at": "timestamp",
        "claimed_by": "string",
        "batched": "boolean",
        "lease_expires_at": "timestamp",
        "next_run_at": "timestamp",
        "last_error": "json",
        "failed_at": "timestamp",
        "salt": "bigint",
        "interruptions": "int",
    },
    "finished_jobs": _JOB
    | {
        "moved_at": "timestamp",
        "claimed_at": "timestamp",
        "finished_at": "timestamp",
        "finished_by": "string",
        "attempts": "int",
        "last_error": "json",
        "finished_xid": "bigint",
        "superseded_by": "bigint",
        "result": "json",
    },
    "dead_jobs": _JOB
    | _LIMITS
    | _UNIQUE
    | {
        "attempts": "int",
        "last_error": "json",
        "died_at": "timestamp",
        "reason": "string",
        "explanation": "string",
        "salt": "bigint",
        "died_xid": "bigint",
    },
    "job_steps": {
        "job_id": "bigint",
        "name": "string",
        "result": "json",
        "seconds": "double",
        "fencing_token": "bigint",
        "recorded_at": "timestamp",
        "undo": "json",
        "undone_by": "bigint",
    },
    "job_edges": {
        "child_id": "bigint",
        "parent_id": "bigint",
        "awaited_id": "bigint",
        "on_failure": "string",
        "state": "string",
        "changed_xid": "bigint",
        "node": "string",
    },
    "flows": {
        "id": "bigint",
        "name": "string",
        "description": "string",
        "on_success": "bigint",
        "on_complete": "bigint",
        "on_dead": "bigint",
        "undone_by": "bigint",
        "expires_at": "timestamp",
        "staged_at": "timestamp",
        "staged_by": "string",
    },
}
# Archived tables, with the keys of their rows; the first column of the others is the finished job's id.
KEYS = {
    JOBS: ("id",),
    "job_steps": ("job_id", "name"),
    "job_edges": ("child_id", "parent_id"),
    "flows": ("id",),
}
ARCHIVED = {table: TABLES[table] | {DATE: "string"} for table in KEYS}

STAGEABLE = {name: TABLES["staged_jobs"][name] for name in columns.STAGEABLE.split(", ")}
# Of a flow's nodes.
_GRAPH = {bulk_flows.NODE: "string", bulk_flows.AFTER: "json"}

_ACCEPTED = {
    "string": ("string",),
    "json": ("string",),
    "int": ("int", "bigint", "smallint", "tinyint"),
    "timestamp": ("timestamp",),
    "double": ("double", "float", "int", "bigint", "smallint", "tinyint"),
}

JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def spark_schema(kinds: Mapping[str, str], names: Sequence[str]) -> str:
    """Describe columns as a Spark schema."""
    return ", ".join(f"{name} {'string' if kinds[name] == 'json' else kinds[name]}" for name in names)


def arrow_schema(kinds: dict[str, str]) -> pa.Schema:
    """Describe columns as an Arrow schema."""
    import pyarrow as pa

    types = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "string": pa.string(),
        "json": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    return pa.schema([pa.field(name, types[kind]) for name, kind in kinds.items()])


def select_list(table: str, names: Sequence[str]) -> str:
    """List the columns in SQL, cast from types unknown to ADBC."""
    kinds = TABLES[table]
    return ", ".join(_selected(name, kinds[name]) for name in names)


def chosen(table: str, text: str | None) -> list[str]:
    """Choose columns from a comma-separated list, or all."""
    known = TABLES[table]
    names = [name.strip() for name in text.split(",")] if text else list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{table} has no column {name!r}; it has {', '.join(known)}")
    return names


def stageable(schema: StructType, *, in_graph: bool = False) -> list[str]:
    """Check the columns to stage, and return their names."""
    kinds = STAGEABLE | _GRAPH if in_graph else STAGEABLE
    if "job_name" not in schema.names:
        raise ConfigError(f"column job_name is missing; there are {', '.join(schema.names) or 'none'}")
    for field in schema.fields:
        if field.name not in kinds:
            raise ConfigError(f"column {field.name!r} cannot be staged; columns that can: {', '.join(kinds)}")
        given = field.dataType.simpleString()
        if given not in _ACCEPTED[kinds[field.name]]:
            hint = "; to_json(array(…)) makes one" if kinds[field.name] == "json" else ""
            raise ConfigError(
                f"column {field.name} is {given} but must be {_ACCEPTED[kinds[field.name]][0]}{hint}"
            )
    return list(schema.names)


def _selected(name: str, kind: str) -> str:
    if kind == "json":
        return f"{name}::text AS {name}"
    if name.endswith("_xid"):
        return f"{name}::text::bigint AS {name}"
    return name
