"""Statements in the application's transaction, on SQLAlchemy, psycopg or Django.

Never commits or rolls back. Placeholders are `%(name)s`; no other percent signs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from drain.database import postgres
from drain.database.qualified import qualified
from drain.errors import ConnectableError, SchemaError, StageError

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

T = TypeVar("T")


class DjangoConnection(Protocol):
    """`connection` of django.db, or one of its `connections`."""

    alias: str
    vendor: str

    def ensure_connection(self) -> None:
        """Connect."""


Connectable: TypeAlias = (
    "Session | scoped_session[Any] | sqlalchemy.Connection | psycopg.Connection[Any] | psycopg.Cursor[Any] "
    "| DjangoConnection"
)
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
NO_TRANSACTION = (
    "a batch or flow needs one transaction, and this connection is in autocommit mode: open one, such as "
    "`with connection.transaction():`, in Django `atomic()`"
)
_TRIES = 5
# Row moved to another partition, deadlock.
_IN_THE_WAY = {"40001", "40P01"}
# Missing table, function, schema.
_MISSING = {"42P01", "42883", "3F000"}


def insert(connection: Connectable, statement: str, parameters: Mapping[str, Any]) -> list[int]:
    """Run a statement that ends in RETURNING one number; psycopg may prepare it.

    Raises:
        ConnectableError: Unsupported type of connection.
        SchemaError: The tables are missing.
    """
    statement = qualified(statement)
    driver = _of_psycopg(connection)
    with needing_tables():
        if driver is not None:
            return _insert_with_psycopg(driver, statement, parameters)
        return [job_id for (job_id,) in _execute_with_sqlalchemy(connection, statement, parameters)]


def execute(connection: Connectable, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run a statement that returns rows; never prepared, for poolers. Raises as `insert`."""
    statement = qualified(statement)
    driver = _of_psycopg(connection)
    with needing_tables():
        if driver is not None:
            # psycopg parses text times in the ISO DateStyle only.
            with psycopg.Cursor(driver, row_factory=tuple_row) as cursor:
                return cursor.execute(statement.encode(), parameters, prepare=False, binary=True).fetchall()
        return _execute_with_sqlalchemy(connection, statement, parameters)


@contextmanager
def needing_tables() -> Iterator[None]:
    """Translate missing tables to SchemaError, for all drivers."""
    try:
        yield
    except Exception as error:
        if sqlstate(error) not in _MISSING:
            raise
        raise SchemaError(
            "the connection finds no job-drain tables: run `drain init`, or name their schema in DRAIN_SCHEMA "
            f"({str(getattr(error, 'orig', None) or error).partition(chr(10))[0]})"
        ) from error


def is_one(connection: Any) -> bool:
    """Return whether a connection is synchronous."""
    try:
        return _of_psycopg(connection) is not None or _of_sqlalchemy(connection) is not None
    except ConnectableError:
        return False


def require_transaction(connection: Connectable) -> None:
    """Raise StageError if each statement would commit on its own."""
    driver = _of_psycopg(connection)
    if driver is not None:
        commits = driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE
    else:
        commits = getattr(_of_sqlalchemy(connection).connection.dbapi_connection, "autocommit", False) is True
    if commits:
        raise StageError(NO_TRANSACTION)


def together(connection: Connectable, block: Callable[[], T]) -> T:
    """Call a function behind a savepoint.

    Conflicts are retried, which cannot help under repeatable read. Autocommit gets a transaction.
    """
    for _ in range(_TRIES - 1):
        try:
            return _behind_savepoint(connection, block)
        except Exception as error:
            if sqlstate(error) not in _IN_THE_WAY:
                raise
    return _behind_savepoint(connection, block)


def _behind_savepoint(connection: Connectable, block: Callable[[], T]) -> T:
    driver = _of_psycopg(connection)
    if driver is None:
        with _of_sqlalchemy(connection).begin_nested():
            return block()
    if not driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE:
        # On an idle connection, psycopg would commit at the end.
        driver.execute("SELECT")
    with driver.transaction():
        return block()


def sqlstate(error: Exception) -> str | None:
    """Return the code of a driver's error."""
    # SQLAlchemy wraps errors; psycopg2 names the code `pgcode`.
    cause = getattr(error, "orig", None) or error
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


def below_django(connection: Any) -> Any:
    """Unwrap Django's connection; others are unchanged.

    Raises:
        ConnectableError: Not PostgreSQL with psycopg 3.
    """
    # Such a connection implies the import.
    if "django.db" not in sys.modules:
        return connection
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.utils.connection import ConnectionProxy

    if isinstance(connection, ConnectionProxy):
        connection = connection._connections[connection._alias]
    if not isinstance(connection, BaseDatabaseWrapper):
        return connection
    connection.validate_thread_sharing()
    connection.validate_no_broken_transaction()
    connection.ensure_connection()
    # Django's cursors may have unfetched rows, and count queries.
    driver = connection.connection
    if not isinstance(driver, psycopg.Connection):
        raise ConnectableError(
            f"Django's connection {connection.alias!r} is {connection.vendor} by {type(driver).__module__}; "
            "jobs are staged on PostgreSQL by psycopg 3: pip install 'psycopg[binary]'"
        )
    return driver


def _of_psycopg(connection: Any) -> psycopg.Connection[Any] | None:
    connection = below_django(connection)
    if isinstance(connection, psycopg.Cursor):
        # The caller's cursor may have unfetched rows.
        return connection.connection
    return connection if isinstance(connection, psycopg.Connection) else None


def _of_sqlalchemy(connection: Any) -> sqlalchemy.Connection:
    # SQLAlchemy takes longest to import.
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, Session | scoped_session):
        connection = connection.connection()
    if not isinstance(connection, sqlalchemy.Connection):
        asynchronous = hasattr(connection, "run_sync") or "Async" in type(connection).__name__
        hint = "; await drain.astage on it" if asynchronous else ""
        raise ConnectableError(
            f"cannot work on a {type(connection).__name__}{hint}; pass a SQLAlchemy Session or Connection, "
            "a psycopg connection or cursor, or Django's connection"
        )
    return connection


def _execute_with_sqlalchemy(
    connection: Any, statement: str, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in _of_sqlalchemy(connection).execute(_text(statement), parameters)]


# Applications repeat a few statements.
@lru_cache(maxsize=500)
def _text(statement: str) -> sqlalchemy.TextClause:
    import sqlalchemy

    return sqlalchemy.text(_PLACEHOLDER.sub(r":\1", statement))


def _insert_with_psycopg(
    connection: psycopg.Connection[Any], statement: str, parameters: Mapping[str, Any]
) -> list[int]:
    # Behind a pooler, the next transaction's session may lack a prepared statement. The backend's process id reveals a
    # pooler at no cost.
    prepare = False if postgres.is_pooled(connection) else None
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(f"{statement}, pg_backend_pid()", parameters, prepare=prepare)
        rows = cursor.fetchall()
    for _, pid in rows[:1]:
        postgres.detect_pooler(connection, pid)
    return [job_id for job_id, _ in rows]
