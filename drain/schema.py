"""Applies `schema.sql`, and tells a database that has it from one that has not."""

from __future__ import annotations

from pathlib import Path

from psycopg import errors

from drain import postgres
from drain.errors import SchemaError
from drain.postgres import Connection

VERSION = 2

_LONGEST_SECONDS = 300

# Two who apply at the same time would collide on "IF NOT EXISTS", which looks before it locks.
_LOCK = "SELECT pg_advisory_xact_lock(1785684580, 3)"
_VERSION = "SELECT max(version) FROM drain_schema"


def text() -> str:
    """The DDL, as it stands in `schema.sql`."""
    beside_the_module = Path(__file__).with_name("schema.sql")
    in_the_checkout = Path(__file__).parents[1] / "schema.sql"
    path = beside_the_module if beside_the_module.exists() else in_the_checkout
    return path.read_text(encoding="utf-8")


def install(database_url: str) -> int:
    """Apply the schema in one transaction, or bring an older one up to date.

    Returns:
        The version that the database has now. If it had that already, nothing was touched.

    Raises:
        UnavailableError: The database cannot be reached.
        SchemaError: It has a newer schema or an encoding that checks nothing, or the role may not create tables.
    """
    connection = postgres.connect(database_url, "drain init")
    with (
        connection,
        postgres.reachable(database_url),
        postgres.time_limit(connection, _LONGEST_SECONDS),
        connection.transaction(),
    ):
        _require_encoding(connection)
        connection.execute(_LOCK)
        # Who waits for a table's lock makes everybody else wait behind it.
        connection.execute("SET LOCAL lock_timeout = '2s'")
        found = version(connection)
        if found is not None and found > VERSION:
            raise _newer(found)
        if found == VERSION:
            # Even "IF NOT EXISTS" locks out everybody who stages before it looks.
            return VERSION
        try:
            connection.execute(text())
        except errors.LockNotAvailable:
            raise SchemaError(
                "the tables are in use by a long transaction; nothing was changed, run `drain init` again"
            ) from None
        except errors.InsufficientPrivilege as error:
            raise SchemaError(f"the role may not create the tables: {error.diag.message_primary}") from None
    return VERSION


def version(connection: Connection) -> int | None:
    """Version of the schema in this database; None if it has none."""
    (exists,) = postgres.fetch_one(connection, "SELECT to_regclass('drain_schema') IS NOT NULL")
    if not exists:
        return None
    (found,) = postgres.fetch_one(connection, _VERSION)
    return None if found is None else int(found)


def check(connection: Connection) -> None:
    """Raise unless the database has exactly the schema that this program knows.

    Raises:
        SchemaError: It has none, an older or a newer one, or an encoding that checks nothing.
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
