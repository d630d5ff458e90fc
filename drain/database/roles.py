"""SQL of `drain roles`: roles without login, with exactly the rights in `grants`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from psycopg.sql import Identifier

from drain.database.grants import GRANTS, TITLES
from drain.database.postgres import Connection
from drain.errors import ConfigError, SchemaError

# None of these characters can end a DO block.
_NAME = re.compile(r"[^\W\d][\w.@-]*")
_LONGEST_NAME_BYTES = 63


class Statement(NamedTuple):
    """SQL, and its reason."""

    sql: str
    reason: str


class Owned(NamedTuple):
    """Table, sequence or function; `name` is qualified and quoted."""

    kind: str
    name: str
    owner: str


@dataclass(frozen=True, slots=True)
class Installation:
    """Schema, owner and objects of job-drain in a database.

    Attributes:
        owner_is_superuser: `drain_make_days()` runs with superuser rights.
        objects: All whose owner can be changed.
    """

    schema: str
    owner: str
    owner_is_superuser: bool
    objects: Sequence[Owned]


def statements(
    installation: Installation, names: Mapping[str, str], owner: str | None = None
) -> list[Statement]:
    """List repeatable statements, for a transaction after `SETTINGS`.

    Args:
        names: Role names, by the keys of `DEFAULT_NAMES`.
        owner: New owner of our objects.

    Raises:
        ConfigError: A role's name is invalid.
    """
    wanted = dict.fromkeys([*names.values(), *([owner] if owner else ())])
    for name in wanted:
        _require_name(name)
    return [
        *map(_create, wanted),
        *_schema_statements(installation, owner),
        *(grant for role, name in names.items() for grant in _grants(installation.schema, role, name)),
    ]


# Objects in other schemas must not shadow PostgreSQL's; staging must not wait long behind a lock.
SETTINGS = ("SET LOCAL search_path = pg_catalog, pg_temp", "SET LOCAL lock_timeout = '2s'")


def script(installation: Installation, found: Iterable[Statement]) -> str:
    """Build a psql script, with reasons as comments."""
    lines = [f"-- Rights on job-drain's tables in the schema {quoted(installation.schema)}. Safe to repeat."]
    lines += [*_advice(installation), "BEGIN;", *(f"{setting};" for setting in SETTINGS)]
    for reason, group in groupby(found, attrgetter("reason")):
        lines += ["", f"-- {reason}", *(f"{statement.sql};" for statement in group)]
    return "\n".join([*lines, "", "COMMIT;"])


def apply(connection: Connection, found: Iterable[Statement]) -> None:
    """Execute the statements in one transaction.

    Args:
        connection: Of a superuser, or an owner with CREATEROLE.
    """
    with connection.transaction():
        for sql in (*SETTINGS, *(statement.sql for statement in found)):
            connection.execute(sql.encode())


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return Identifier(name).as_string()


_HOME = """
SELECT home.nspname, owner.rolname, owner.rolsuper
FROM pg_catalog.pg_class AS job
    JOIN pg_catalog.pg_namespace AS home ON home.oid = job.relnamespace
    JOIN pg_catalog.pg_roles AS owner ON owner.oid = job.relowner
WHERE job.oid = pg_catalog.to_regclass('staged_jobs')::pg_catalog.oid
"""
# A column's sequence follows its table. Objects made by others than owner and superusers are left out: a SECURITY
# DEFINER function would get the new owner's rights.
_OBJECTS = """
WITH staged AS (
    SELECT relnamespace AS home, relowner AS owner FROM pg_catalog.pg_class
    WHERE oid = pg_catalog.to_regclass('staged_jobs')::pg_catalog.oid
), named AS (
    SELECT pg_catalog.to_regclass(name)::pg_catalog.oid AS oid
    FROM pg_catalog.unnest(ARRAY['inflight_jobs', 'dead_jobs', 'stale_finishes', 'bulk_runs', 'drain_state',
         'drain_schema', 'drain_last_delivery', 'drain_pushed_up_to', 'queues', 'queue_pauses', 'crons',
        'idempotency_keys', 'cancelled_claims', 'job_steps',
        'job_edges', 'flows', 'job_waits', 'job_events']) AS ours (name)
    UNION ALL SELECT relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree('staged_jobs')
    UNION ALL SELECT relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree('finished_jobs')
), found AS (
    SELECT 'TABLE' AS kind, job.relnamespace AS home, pg_catalog.quote_ident(job.relname::text) AS name,
        job.relowner AS owner
    FROM pg_catalog.pg_class AS job JOIN named USING (oid)
    UNION ALL
    SELECT 'FUNCTION', proc.pronamespace, pg_catalog.format('%I(%s)', proc.proname,
        pg_catalog.pg_get_function_identity_arguments(proc.oid)), proc.proowner
    FROM pg_catalog.pg_proc AS proc WHERE pg_catalog.starts_with(proc.proname::text, 'drain_')
)
SELECT found.kind, pg_catalog.format('%I.%s', space.nspname, found.name), role.rolname
FROM staged JOIN found USING (home) JOIN pg_catalog.pg_namespace AS space ON space.oid = home
    JOIN pg_catalog.pg_roles AS role ON role.oid = found.owner
WHERE role.rolsuper OR role.oid = staged.owner
ORDER BY 1, 2
"""


def installation_of(connection: Connection) -> Installation:
    """Find our tables; raise a SchemaError without any."""
    found = connection.execute(_HOME).fetchone()
    if found is None:
        raise SchemaError("the database has no job-drain schema; run `drain init` first")
    schema, owner, is_superuser = found
    objects = [Owned._make(row) for row in connection.execute(_OBJECTS.encode()).fetchall()]
    return Installation(schema, owner, bool(is_superuser), objects)


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name.encode()) > _LONGEST_NAME_BYTES:
        raise ConfigError(
            f"{name!r} is not a valid role name: use a letter or _, then letters, digits, _ . @ -, at most "
            f"{_LONGEST_NAME_BYTES} bytes in all"
        )


def _create(name: str) -> Statement:
    return Statement(
        f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN "
        f"CREATE ROLE {quoted(name)} NOLOGIN; END IF; END $$",
        "Roles without login: GRANT drain_worker TO the_role_that_your_workers_log_in_as.",
    )


def _schema_statements(installation: Installation, owner: str | None) -> Iterator[Statement]:
    schema, role = quoted(installation.schema), quoted(owner or installation.owner)
    yield Statement(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}", "The owner makes a partition a day.")
    for kind, name, present in installation.objects if owner else ():
        if present != owner:
            yield Statement(
                f"ALTER {kind} {name} OWNER TO {role}", "All objects of job-drain belong to one role."
            )
    yield Statement(
        f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC",
        "Up to PostgreSQL 14 every role may create objects in public, and a query there may find them first.",
    )


def _grants(schema: str, role: str, name: str) -> Iterator[Statement]:
    yield Statement(f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(name)}", f"For {TITLES[role]}")
    for grant in GRANTS[role]:
        # A function's parentheses may have commas.
        objects = [grant.objects] if grant.kind == "FUNCTION" else grant.objects.split(", ")
        places = ", ".join(f"{quoted(schema)}.{each}" for each in objects)
        yield Statement(f"GRANT {grant.privileges} ON {grant.kind} {places} TO {quoted(name)}", grant.reason)


def _advice(installation: Installation) -> Iterator[str]:
    if installation.schema != "public":
        yield (
            "-- The roles that log in find the tables by their search_path: "
            f"ALTER ROLE ... SET search_path = {quoted(installation.schema)}, ..."
        )
    if installation.owner_is_superuser:
        yield (
            "-- The tables belong to a superuser, and drain_make_days() runs as their owner: "
            "--owner NAME hands them over to a less privileged role."
        )
