"""Schema of the database: installed from `schema.sql` or the migrations, and checked by every program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import IsolationLevel, errors

from drain.database import locks, postgres
from drain.database.postgres import Connection
from drain.errors import SchemaError

VERSION = 5

# Timeout of an installation.
_LONGEST_SECONDS = 300

# Statement that lets one installation pass at a time: two would collide on "IF NOT EXISTS", which looks before it
# locks. psql would print the result of a SELECT.
_LOCK = f"DO $$ BEGIN PERFORM pg_advisory_xact_lock({locks.SCHEMA}); END $$"
# Timeout for a lock: all later users of the table wait behind the one that waits for its lock.
_PATIENCE = "SET LOCAL lock_timeout = '2s'"
# Line of a migration behind which stand statements that may take long, and be repeated: they begin after the commit.
_AFTER = "-- After the commit:\n"

_LOOK = """
SELECT to_regclass('drain_schema') IS NOT NULL, (
    SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = to_regclass('drain_schema')::oid AND NOT attisdropped
        AND (attname, atttypid) IN (
            ('version'::name, 'integer'::regtype::oid), ('applied_at'::name, 'timestamptz'::regtype::oid)))
"""
_VERSION = "SELECT max(version) FROM drain_schema"
_NAME = re.compile(
    r"^CREATE (?:OR REPLACE )?(?:UNIQUE )?(?:TABLE|INDEX|SEQUENCE|FUNCTION|VIEW) (?:IF NOT EXISTS )?(\w+)",
    re.MULTILINE,
)
_SCHEMA = "SELECT current_schema()"
# Query for an object of another owner under a name of ours, or under that of a daily partition, which is made later.
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
_UNVALIDATED = """
SELECT EXISTS (SELECT FROM pg_constraint JOIN pg_catalog.unnest(%s::text[]) AS name
        ON conrelid = to_regclass(name)::oid WHERE NOT convalidated)
"""
# Databases that had the right version when this process first looked.
_checked: set[frozenset[tuple[str, str]]] = set()

_GUARD = """
DO $guard$
DECLARE found integer := 0;
BEGIN
    IF to_regclass('drain_schema') IS NOT NULL THEN
        SELECT max(version) INTO found FROM drain_schema;
    END IF;
    IF found IS DISTINCT FROM {since} THEN
        RAISE EXCEPTION 'this is for a database with {has}, and this one has version %', found;
    END IF;
END
$guard$;
"""


def text() -> str:
    """Read the newest version of the whole schema, `schema.sql`."""
    return _source("schema.sql").read_text(encoding="utf-8")


def script(version: int = VERSION, since: int = 0) -> str:
    """Build a script for psql that does the same as `drain init`.

    The script changes nothing in a database with another version than `since`.

    Args:
        version: Version of the database afterwards.
        since: Version of the database before; 0 for none.

    Raises:
        SchemaError: There are no such versions, or the second is not the older one.
    """
    if not 1 <= version <= VERSION or not 0 <= since <= VERSION:
        wrong = version if not 1 <= version <= VERSION else since
        raise SchemaError(f"there is no version {wrong} of the schema; this program knows 1 to {VERSION}")
    if since >= version:
        raise SchemaError(
            f"the way leads from an older version to a newer one, not from {since} to {version}"
        )
    has = f"version {since} of the schema" if since else "no job-drain schema"
    steps = _steps(since, version)
    blocks = ["\n".join([_GUARD.format(since=since, has=has), *(step for step, _ in steps)])]
    blocks += [after for _, after in steps if after]
    return "\n".join(f"BEGIN;\n{_LOCK};\n{_PATIENCE};\n{block}\nCOMMIT;\n" for block in blocks)


def install(database_url: str) -> int:
    """Apply the schema in one transaction, or the migrations that an older one lacks.

    Statements that may take long, and make no other session wait, follow in a second transaction; if that is
    interrupted, the next call executes them.

    Returns:
        Version of the database now. If it was that already, nothing was touched.

    Raises:
        UnavailableError: The database cannot be reached.
        SchemaError: The database has a newer schema, or another owner's tables under our names, or an encoding that
            checks nothing; it accepts no writes; its tables are in use; or the role may not create or change them.
    """
    connection = postgres.connect(database_url, "drain init")
    with (
        connection,
        postgres.reachable(database_url),
        postgres.time_limit(connection, _LONGEST_SECONDS),
    ):
        with _applying(connection, "nothing was changed"):
            found = _version_before(connection)
            # Executed only if needed: even "IF NOT EXISTS" locks the tables, and sessions that stage would wait.
            for step, _ in _steps(found, VERSION):
                connection.execute(step.encode())
        if _is_unfinished(connection):
            with _applying(
                connection, f"version {VERSION} is in place, but a check of rows from before is missing"
            ):
                for _, after in _steps(1, VERSION):
                    connection.execute(after.encode())
    return VERSION


def version(connection: Connection) -> int | None:
    """Read the version of the schema in this database; None if it has none.

    Raises:
        SchemaError: `drain_schema` is not ours, or empty.
    """
    exists, is_ours = postgres.fetch_one(connection, _LOOK)
    if not exists:
        return None
    if not is_ours:
        raise _not_ours("table drain_schema", "it has other columns")
    (found,) = postgres.fetch_one(connection, _VERSION)
    if found is None:
        raise SchemaError("the table drain_schema is empty: insert the version that the other tables have")
    return int(found)


def check(connection: Connection) -> None:
    """Raise unless the database has exactly the schema that this program knows.

    Raises:
        SchemaError: The database has no schema, an older or a newer one, or an encoding that checks nothing.
    """
    _require_encoding(connection)
    found = version(connection)
    if found is None:
        raise SchemaError("the database has no job-drain schema; run `drain init` first")
    if found > VERSION:
        raise _newer(found)
    if found < VERSION:
        raise SchemaError(
            f"the database has version {found} of the schema and this program needs {VERSION}; "
            "run `drain init` to bring it up to date"
        )
    _checked.add(_database_of(connection))


def check_once(connection: Connection) -> None:
    """Call `check`, unless this process, or one that it was forked from, has done so before.

    An upgrade takes place while programs run, and each version works with the programs of the one before: until they
    are replaced, neither their forked children nor their new connections may be refused.

    Raises:
        SchemaError: As `check`.
    """
    if not was_checked(connection):
        check(connection)


def was_checked(connection: Connection) -> bool:
    """Return True if this process, or one that it was forked from, has found the right version in this database."""
    return _database_of(connection) in _checked


def _database_of(connection: Connection) -> frozenset[tuple[str, str]]:
    """Return the parameters of a connection that name its database."""
    parameters = connection.info.get_parameters()
    # Sessions in one database differ in their purpose and their settings.
    return frozenset(
        (name, value) for name, value in parameters.items() if name not in ("application_name", "options")
    )


@contextmanager
def _applying(connection: Connection, otherwise: str) -> Iterator[None]:
    """Open a transaction that one caller at a time passes through.

    Raises:
        SchemaError: The database refused it; `otherwise` says what holds then.
    """
    # At read committed, statements behind the lock see the commit of the caller before.
    try:
        with postgres.transaction(connection, IsolationLevel.READ_COMMITTED):
            connection.execute(_LOCK)
            connection.execute(_PATIENCE)
            yield
    except (errors.LockNotAvailable, errors.QueryCanceled):
        raise SchemaError(
            f"the tables are in use by a long transaction; {otherwise}, run `drain init` again"
        ) from None
    except errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"the role may not create the tables, or change them: {error.diag.message_primary}; {otherwise}"
        ) from None
    except errors.ReadOnlySqlTransaction:
        raise SchemaError(
            f"the database accepts no writes, as a standby or by its settings; {otherwise}"
        ) from None


def _version_before(connection: Connection) -> int:
    """Read the version of the database; 0 for none, after a check that our names are free."""
    _require_encoding(connection)
    found = version(connection)
    if found is None:
        _require_free_names(connection)
        return 0
    if found > VERSION:
        raise _newer(found)
    return found


def _require_free_names(connection: Connection) -> None:
    (schema,) = postgres.fetch_one(connection, _SCHEMA)
    if schema is None:
        raise SchemaError(
            "the search_path of the connection names no schema that exists and may be used: "
            "make it first, or correct DRAIN_DATABASE_URL"
        )
    taken = connection.execute(_FOREIGN_OBJECT, {"names": _NAME.findall(text())}).fetchone()
    if taken is not None:
        kind, name = taken
        raise _not_ours(f"{kind} {name} in the schema {schema}", "there is no drain_schema beside it")


def _is_unfinished(connection: Connection) -> bool:
    (unvalidated,) = postgres.fetch_one(connection, _UNVALIDATED, (_NAME.findall(text()),))
    return bool(unvalidated)


def _steps(since: int, to: int) -> list[tuple[str, str]]:
    """List the scripts from one version to another, each with the statements that follow after its commit."""
    if since == 0 and to == VERSION:
        return [(text(), "")]
    files = [next(_source("migrations").glob(f"{number:04}_*.sql")) for number in range(since + 1, to + 1)]
    parts = [file.read_text(encoding="utf-8").partition(_AFTER) for file in files]
    return [(step, after) for step, _, after in parts]


def _source(name: str) -> Path:
    in_the_wheel = Path(__file__).parents[1] / name
    in_the_checkout = Path(__file__).parents[2] / name
    return in_the_wheel if in_the_wheel.exists() else in_the_checkout


def _require_encoding(connection: Connection) -> None:
    (encoding,) = postgres.fetch_one(connection, "SELECT current_setting('server_encoding')")
    if encoding == "SQL_ASCII":
        raise SchemaError(
            "the database has the encoding SQL_ASCII, which takes bytes that no program can read as text; "
            "create it with ENCODING 'UTF8'"
        )


def _newer(found: int) -> SchemaError:
    return SchemaError(
        f"the database has version {found} of the schema and this program knows only {VERSION}; "
        "upgrade job-drain here"
    )


def _not_ours(what: str, why: str) -> SchemaError:
    return SchemaError(
        f"the {what} is not job-drain's ({why}), and was left alone: make a schema for job-drain alone, "
        "such as jobs, and add ?options=-csearch_path%3Djobs to DRAIN_DATABASE_URL"
    )
