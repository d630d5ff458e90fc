"""Roles with the rights that `grants` lists, and no others: the SQL that `drain roles` prints.

All are roles without login: a login role is granted those that it needs.
"""

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

# Characters of a role's name: none can end the text of a DO block.
_NAME = re.compile(r"[^\W\d][\w.@-]*")
_LONGEST_NAME_BYTES = 63


class Statement(NamedTuple):
    """One statement, without its semicolon, and the reason for it."""

    sql: str
    reason: str


class Owned(NamedTuple):
    """Table, sequence or function of ours: `kind` as ALTER spells it, the name qualified and quoted."""

    kind: str
    name: str
    owner: str


@dataclass(frozen=True, slots=True)
class Installation:
    """Place of our tables in a database, and their owner.

    Attributes:
        schema: Name of the schema.
        owner: Role that owns `staged_jobs`.
        owner_is_superuser: True if that role is a superuser, with whose rights `drain_make_days()` then runs.
        objects: All tables, sequences and functions whose owner can be changed.
    """

    schema: str
    owner: str
    owner_is_superuser: bool
    objects: Sequence[Owned]


def statements(
    installation: Installation, names: Mapping[str, str], owner: str | None = None
) -> list[Statement]:
    """List the statements that make these roles and give them their rights; they may be executed repeatedly.

    To be executed in one transaction, which begins with `SETTINGS`.

    Args:
        installation: Result of `installation_of`.
        names: Name of each wanted role, by the keys of `DEFAULT_NAMES`.
        owner: Role that becomes the owner of everything of ours; None changes no owner.

    Raises:
        ConfigError: A name is not one that a role could have.
    """
    wanted = dict.fromkeys([*names.values(), *([owner] if owner else ())])
    for name in wanted:
        _require_name(name)
    return [
        *map(_create, wanted),
        *_schema_statements(installation, owner),
        *(grant for role, name in names.items() for grant in _grants(installation.schema, role, name)),
    ]


# Settings of the transaction: no object in another schema is found in the place of PostgreSQL's own, and transactions
# that stage do not wait long behind a lock.
SETTINGS = ("SET LOCAL search_path = pg_catalog, pg_temp", "SET LOCAL lock_timeout = '2s'")


def script(installation: Installation, found: Iterable[Statement]) -> str:
    """Build a script for psql: one transaction, each statement under the comment that explains it."""
    lines = [f"-- Rights on job-drain's tables in the schema {quoted(installation.schema)}. Safe to repeat."]
    lines += [*_advice(installation), "BEGIN;", *(f"{setting};" for setting in SETTINGS)]
    for reason, group in groupby(found, attrgetter("reason")):
        lines += ["", f"-- {reason}", *(f"{statement.sql};" for statement in group)]
    return "\n".join([*lines, "", "COMMIT;"])


def apply(connection: Connection, found: Iterable[Statement]) -> None:
    """Execute the statements in one transaction.

    Args:
        connection: In autocommit mode, of a superuser, or of the owner of schema and tables who may create roles.
        found: Result of `statements`.

    Raises:
        psycopg.Error: Nothing has been changed.
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
# Query for our tables, with partitions, and for our functions. A sequence that belongs
# to a column goes with its table. An object under a name of ours is not ours unless the owner or a superuser has made
# it: a SECURITY DEFINER function of another role would get the rights of its new owner.
_OBJECTS = """
WITH staged AS (
    SELECT relnamespace AS home, relowner AS owner FROM pg_catalog.pg_class
    WHERE oid = pg_catalog.to_regclass('staged_jobs')::pg_catalog.oid
), named AS (
    SELECT pg_catalog.to_regclass(name)::pg_catalog.oid AS oid
    FROM pg_catalog.unnest(ARRAY['inflight_jobs', 'dead_jobs', 'stale_finishes', 'bulk_runs', 'drain_state',
         'drain_schema', 'drain_last_delivery', 'drain_pushed_up_to', 'queues', 'queue_pauses', 'crons',
        'idempotency_keys', 'cancelled_claims']) AS ours (name)
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
    """Find our tables by the search_path of the connection, and their owner.

    Raises:
        SchemaError: There are no tables of ours.
    """
    found = connection.execute(_HOME).fetchone()
    if found is None:
        raise SchemaError("the database has no job-drain schema; run `drain init` first")
    schema, owner, is_superuser = found
    objects = [Owned._make(row) for row in connection.execute(_OBJECTS.encode()).fetchall()]
    return Installation(schema, owner, bool(is_superuser), objects)


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name.encode()) > _LONGEST_NAME_BYTES:
        raise ConfigError(
            f"{name!r} is no name for a role: a letter or _, then letters, digits, _ . @ -, at most "
            f"{_LONGEST_NAME_BYTES} bytes in all"
        )


def _create(name: str) -> Statement:
    return Statement(
        f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN "
        f"CREATE ROLE {quoted(name)} NOLOGIN; END IF; END $$",
        "Roles without login: GRANT drain_worker TO the_role_that_your_workers_log_in_as.",
    )


def _schema_statements(installation: Installation, owner: str | None) -> Iterator[Statement]:
    """List the statements about the schema and its owner."""
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
        # A comma separates objects, but for the commas within the parentheses of a function.
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
            "--owner NAME hands them over to a role of less power."
        )
