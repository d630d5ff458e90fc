"""Statements in the transaction of an application, on whatever connection it has open.

Nothing here commits, rolls back, or begins a transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg.rows import tuple_row

from drain.database import postgres
from drain.errors import StageError

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

Connectable: TypeAlias = (
    "Session | scoped_session[Any] | sqlalchemy.Connection | psycopg.Connection[Any] | psycopg.Cursor[Any]"
)
# Function that makes a statement of the names of columns, and of a function that spells a placeholder.
Build: TypeAlias = Callable[[Sequence[str], Callable[[str], str]], str]
# Parameter of a statement that is no column: the arguments of many jobs.
ARGUMENTS = "arguments"
# Placeholder of psycopg, in a statement that has no other percent sign.
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


def insert(
    connection: Connectable,
    build: Build,
    parameters: Mapping[str, Any],
) -> list[int]:
    """Run a statement that ends with the one number that it returns, in the parameter style of the driver.

    Psycopg may prepare it: for statements that an application sends often.

    Args:
        connection: A SQLAlchemy Session or Connection, or a psycopg connection or cursor.
        build: Function of a module, since its statements are kept.
        parameters: Values by the names of columns; and `ARGUMENTS`.

    Returns:
        The numbers, most often ids.

    Raises:
        StageError: `connection` is none of these.
    """
    names = tuple(parameters)
    driver = _of_psycopg(connection)
    if driver is not None:
        return _insert_with_psycopg(driver, _statement(build, names, "%({})s"), parameters)
    return [
        job_id
        for (job_id,) in _execute_with_sqlalchemy(connection, _statement(build, names, ":{}"), parameters)
    ]


# An application stages with the same few options again and again.
@lru_cache(maxsize=500)
def _statement(build: Build, names: Sequence[str], placeholder: str) -> str:
    return build([name for name in names if name != ARGUMENTS], placeholder.format)


def execute(connection: Connectable, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run a statement that returns rows; it is never prepared, so a pooler may stand in the way.

    Args:
        connection: As for `insert`.
        statement: Statement with the placeholders `%(name)s`, and no other percent sign.
        parameters: Values of the placeholders.

    Raises:
        StageError: As for `insert`.
    """
    driver = _of_psycopg(connection)
    if driver is not None:
        # In binary: psycopg reads times as text in no DateStyle but ISO.
        with psycopg.Cursor(driver, row_factory=tuple_row) as cursor:
            return cursor.execute(statement.encode(), parameters, prepare=False, binary=True).fetchall()
    return _execute_with_sqlalchemy(connection, _PLACEHOLDER.sub(r":\1", statement), parameters)


def _of_psycopg(connection: Connectable) -> psycopg.Connection[Any] | None:
    if isinstance(connection, psycopg.Cursor):
        # Statements of ours open their own cursor: the caller's may have rows that are not fetched yet.
        return connection.connection
    return connection if isinstance(connection, psycopg.Connection) else None


def _execute_with_sqlalchemy(
    connection: Any, statement: str, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    # Imported here: most of our processes never stage, and SQLAlchemy takes longer to import than all else.
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, Session | scoped_session):
        connection = connection.connection()
    if not isinstance(connection, sqlalchemy.Connection):
        raise StageError(
            f"cannot stage on a {type(connection).__name__}; pass a SQLAlchemy Session or Connection, "
            "or a psycopg connection or cursor"
        )
    return [tuple(row) for row in connection.execute(sqlalchemy.text(statement), parameters)]


def _insert_with_psycopg(
    connection: psycopg.Connection[Any], statement: str, parameters: Mapping[str, Any]
) -> list[int]:
    # Psycopg prepares a statement that it has executed five times, and behind a pooler the next transaction may be in
    # another session, which lacks it. All of them end in "RETURNING id": the process id of the server, added to
    # that, shows whether there is a pooler, and costs nothing.
    prepare = False if postgres.is_pooled(connection) else None
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(f"{statement}, pg_backend_pid()", parameters, prepare=prepare)
        rows = cursor.fetchall()
    for _, pid in rows[:1]:
        postgres.detect_pooler(connection, pid)
    return [job_id for job_id, _ in rows]
