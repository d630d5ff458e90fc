"""Database schema: installed from `schema.sql` or migrations, and checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import IsolationLevel, errors

from drain import urls
from drain.database import locks, names, postgres
from drain.database.postgres import Connection
from drain.errors import SchemaError

VERSION = 9

_LONGEST_SECONDS = 300

# "IF NOT EXISTS" looks before it locks: two installations would collide. psql prints nothing for DO.
LOCK = f"DO $$ BEGIN PERFORM pg_advisory_xact_lock({locks.SCHEMA}); END $$"
# Later users of a table queue behind a waiting lock.
PATIENCE = "SET LOCAL lock_timeout = '2s'"
# Statements below may be slow, and are repeatable.
_AFTER = "-- After the commit:\n"

_LOOK = """
SELECT to_regclass('drain_schema') IS NOT NULL, (
    SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = to_regclass('drain_schema')::oid AND NOT attisdropped
        AND (attname, atttypid) IN (
            ('version'::name, 'integer'::regtype::oid), ('applied_at'::name, 'timestamptz'::regtype::oid)))
"""
_VERSION = "SELECT max(version) FROM drain_schema"
_UNVALIDATED = """
SELECT EXISTS (SELECT FROM pg_constraint JOIN pg_catalog.unnest(%s::text[]) AS name
        ON conrelid = to_regclass(name)::oid WHERE NOT convalidated)
"""
# Databases checked by this process or a parent.
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
    """Read the newest schema."""
    return _source("schema.sql").read_text(encoding="utf-8")


def script(version: int = VERSION, since: int = 0) -> str:
    """Build a psql script equivalent to `drain init`.

    It fails in a database with another version than `since`.

    Raises:
        SchemaError: A version is unknown, or `version` is not the newer one.
    """
    return "\n".join(f"BEGIN;\n{block}COMMIT;\n" for block in blocks(version, since))


def blocks(version: int, since: int) -> list[str]:
    """List the transactions of `script`."""
    if not 1 <= version <= VERSION or not 0 <= since <= VERSION:
        wrong = version if not 1 <= version <= VERSION else since
        raise SchemaError(f"there is no version {wrong} of the schema; this program knows 1 to {VERSION}")
    if since >= version:
        raise SchemaError(
            f"a migration goes from an older version to a newer one, not from {since} to {version}"
        )
    has = f"version {since} of the schema" if since else "no job-drain schema"
    way = steps(since, version)
    found = ["\n".join([_GUARD.format(since=since, has=has), *(step for step, _ in way)])]
    found += [after for _, after in way if after]
    return [f"{LOCK};\n{PATIENCE};\n{block}\n" for block in found]


def install(database_url: str) -> int:
    """Apply the schema or missing migrations in one transaction; return its version.

    Slow statements that block no session follow in a second one; if interrupted, the next call runs them. Nothing is
    touched if the version was current.

    Raises:
        UnavailableError: The database is unreachable.
        SchemaError: Newer schema, names taken, SQL_ASCII, read-only, tables in use, or missing rights.
    """
    connection = postgres.connect(database_url, "drain init")
    with (
        connection,
        postgres.reachable(database_url),
        postgres.time_limit(connection, _LONGEST_SECONDS),
    ):
        with _applying(connection, "nothing was changed"):
            if own := urls.schema_of(database_url):
                make(connection, own)
            found = version_before(connection)
            # Only if needed: even "IF NOT EXISTS" takes locks that block staging.
            for step, _ in steps(found, VERSION):
                connection.execute(step.encode())
        if is_unfinished(connection):
            with _applying(
                connection, f"version {VERSION} is in place, but earlier rows are not yet checked"
            ):
                for _, after in steps(1, VERSION):
                    connection.execute(after.encode())
    return VERSION


def make(connection: Connection, name: str) -> None:
    """Create the schema if missing, which alone needs the right."""
    (exists,) = postgres.fetch_one(connection, f"SELECT to_regnamespace('{name}') IS NOT NULL")
    if not exists:
        connection.execute(f"CREATE SCHEMA {name}".encode())


def path_to(name: str) -> str:
    """Build psql lines that create and select a schema; raise a ConfigError if invalid."""
    urls.require_schema_name(name)
    return f"CREATE SCHEMA IF NOT EXISTS {name};\nSET search_path = {name};\n"


def version(connection: Connection) -> int | None:
    """Read the version, if any; raise a SchemaError if `drain_schema` is foreign or empty."""
    exists, is_ours = postgres.fetch_one(connection, _LOOK)
    if not exists:
        return None
    if not is_ours:
        raise names.not_ours("table drain_schema", "it has other columns")
    (found,) = postgres.fetch_one(connection, _VERSION)
    if found is None:
        raise SchemaError("the table drain_schema is empty: insert the version that the other tables have")
    return int(found)


def check(connection: Connection) -> None:
    """Raise a SchemaError for another version, or SQL_ASCII."""
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
    """Call `check` once per database in this process and its forks.

    The previous version's programs keep running during an upgrade: their forks and new connections must not be refused.
    """
    if not was_checked(connection):
        check(connection)


def was_checked(connection: Connection) -> bool:
    """Return True after `check`, in this process or a parent."""
    return _database_of(connection) in _checked


def _database_of(connection: Connection) -> frozenset[tuple[str, str]]:
    parameters = connection.info.get_parameters()
    # These differ within a database.
    return frozenset(
        (name, value) for name, value in parameters.items() if name not in ("application_name", "options")
    )


@contextmanager
def _applying(connection: Connection, otherwise: str) -> Iterator[None]:
    # At read committed, later statements see the previous caller's commit.
    try:
        with postgres.transaction(connection, IsolationLevel.READ_COMMITTED):
            connection.execute(LOCK)
            connection.execute(PATIENCE)
            yield
    except (errors.LockNotAvailable, errors.QueryCanceled):
        raise SchemaError(
            f"the tables are in use by a long transaction; {otherwise}, run `drain init` again"
        ) from None
    except errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"the role may not create the tables, or change them: {error.diag.message_primary}; {otherwise}"
        ) from None
    except errors.DuplicateTable as error:
        raise SchemaError(
            f"{error.diag.message_primary}, and is not job-drain's: rename it, and run this again; {otherwise}"
        ) from None
    except errors.ReadOnlySqlTransaction:
        raise SchemaError(
            f"the database is read-only: a standby, or default_transaction_read_only is on; {otherwise}"
        ) from None


def version_before(connection: Connection) -> int:
    """Read the version; 0 if our names are free."""
    _require_encoding(connection)
    found = version(connection)
    if found is None:
        names.require_only(connection)
        names.require_free(connection, names.names_in(text()))
        return 0
    if found > VERSION:
        raise _newer(found)
    return found


def is_unfinished(connection: Connection) -> bool:
    """Return True if constraints await validation."""
    (unvalidated,) = postgres.fetch_one(connection, _UNVALIDATED, (names.names_in(text()),))
    return bool(unvalidated)


def steps(since: int, to: int) -> list[tuple[str, str]]:
    """List scripts between versions, with their after-commit statements."""
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
            "the database has the encoding SQL_ASCII, which accepts bytes that no program can read as text; "
            "create it with ENCODING 'UTF8'"
        )


def _newer(found: int) -> SchemaError:
    return SchemaError(
        f"the database has version {found} of the schema and this program knows only {VERSION}; "
        "upgrade job-drain here"
    )
