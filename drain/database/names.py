"""Names of job-drain's objects, and a check for foreign ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from drain.database import postgres
from drain.database.postgres import Connection
from drain.errors import SchemaError

_NAME = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|INDEX|SEQUENCE|FUNCTION|VIEW) (?:IF NOT EXISTS )?(\w+)",
    re.MULTILINE,
)
_LATER = re.compile(r"finished_jobs_\d{8}")
_SCHEMA = "SELECT current_schema()"
# Finds foreign objects under our names.
_FOREIGN_OBJECT = r"""
WITH ours AS (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'S' THEN 'sequence'
    WHEN 'i' THEN 'index' WHEN 'I' THEN 'index' ELSE 'table' END AS kind, relname::text AS name
FROM pg_class JOIN ours ON relnamespace = ours.oid
WHERE relname = ANY (%(names)s::name[]) OR relname ~ '^finished_jobs_\d{8}$'::text
UNION ALL SELECT 'function', proname::text FROM pg_proc JOIN ours ON pronamespace = ours.oid
WHERE proname = ANY (%(names)s::name[])
UNION ALL SELECT 'type', typname::text FROM pg_type JOIN ours ON typnamespace = ours.oid
WHERE typname = ANY (%(names)s::name[]) AND typrelid = 0
ORDER BY name LIMIT 1
"""
# Finds job-drain's tables in another schema.
_ELSEWHERE = """
SELECT nspname::text FROM pg_class JOIN pg_namespace AS home ON home.oid = relnamespace
WHERE relname = 'drain_schema'::name AND relkind = 'r'::"char" AND nspname <> current_schema()
    AND to_regclass(format('%I.drain_state', nspname)) IS NOT NULL
ORDER BY 1 LIMIT 1
"""


def names_in(script: str) -> list[str]:
    """List objects that a script creates."""
    return [name for _, name in _NAME.findall(script)]


def tables_in(script: str) -> list[str]:
    """List tables that a script creates."""
    return [name for kind, name in _NAME.findall(script) if kind == "TABLE"]


def is_made_later(table: str) -> bool:
    """Return True for daily partitions."""
    return bool(_LATER.fullmatch(table))


def require_only(connection: Connection) -> None:
    """Raise a SchemaError if another schema has job-drain's tables.

    Locks and notifications span schemas: one of two enqueuers would never lead.
    """
    found = connection.execute(_ELSEWHERE).fetchone()
    if found is not None:
        raise SchemaError(
            f"the schema {found[0]} of this database already has job-drain's tables, and a database has them once: "
            f"set DRAIN_SCHEMA={found[0]} to use these, or use another database"
        )


def require_free(connection: Connection, names: Sequence[str]) -> None:
    """Raise a SchemaError if the search_path's first schema is missing or has such names."""
    (schema,) = postgres.fetch_one(connection, _SCHEMA)
    if schema is None:
        raise SchemaError(
            "the connection's search_path names no existing schema that this role may use: "
            "create one, or correct DRAIN_DATABASE_URL"
        )
    taken = connection.execute(_FOREIGN_OBJECT, {"names": names}).fetchone()
    if taken is not None:
        kind, name = taken
        raise not_ours(f"{kind} {name} in the schema {schema}", "there is no drain_schema next to it")


def not_ours(what: str, why: str) -> SchemaError:
    """Build the error about a foreign object."""
    return SchemaError(
        f"the {what} is not job-drain's ({why}), and was left alone: choose a schema for job-drain alone, "
        "and name it with --schema, or DRAIN_SCHEMA=jobs for each program"
    )
