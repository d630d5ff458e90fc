"""Connections of an application, by SQLAlchemy or psycopg: a statement runs in the transaction that is open there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg.rows import tuple_row

from drain.database import postgres
from drain.errors import StageError
from drain.jobs.values import name_of_type

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


def execute(
    connection: Connectable,
    build: Build,
    parameters: Mapping[str, Any],
) -> list[Any]:
    """Run a statement in the open transaction, in the parameter style of the driver; returns its first column.

    Args:
        connection: As for `stage`.
        build: A function of a module, since its statements are kept. They end with the one value that they return.
        parameters: Values, by column; and `ARGUMENTS`.

    Raises:
        StageError: The connection is of another kind.
    """
    if isinstance(connection, psycopg.Cursor):
        # Staging opens its own cursor: the caller's may have rows that are not fetched yet.
        connection = connection.connection
    if isinstance(connection, psycopg.Connection):
        return _execute_with_psycopg(connection, _statement(build, tuple(parameters), "%({})s"), parameters)
    return _execute_with_sqlalchemy(connection, _statement(build, tuple(parameters), ":{}"), parameters)


# An application stages with the same few options again and again.
@lru_cache(maxsize=500)
def _statement(build: Build, names: Sequence[str], placeholder: str) -> str:
    return build([name for name in names if name != ARGUMENTS], placeholder.format)


def _execute_with_sqlalchemy(connection: Any, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
    # Imported here: most of our processes never stage, and SQLAlchemy takes longer to import than all else.
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, Session | scoped_session):
        connection = connection.connection()
    if not isinstance(connection, sqlalchemy.Connection):
        raise StageError(
            f"cannot stage on a {name_of_type(connection)}; pass a SQLAlchemy Session or Connection, "
            "or a psycopg connection or cursor"
        )
    return list(connection.execute(sqlalchemy.text(statement), parameters).scalars())


def _execute_with_psycopg(
    connection: psycopg.Connection[Any], statement: str, parameters: Mapping[str, Any]
) -> list[Any]:
    # Psycopg prepares a statement that it has executed five times, and behind a pooler the next transaction may be in
    # another session, which lacks it. All statements end with the value that they return: the process id of the server,
    # added to that, shows whether there is a pooler, and costs nothing.
    prepare = False if postgres.is_pooled(connection) else None
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(f"{statement}, pg_backend_pid()", parameters, prepare=prepare)
        rows = cursor.fetchall()
    for _, pid in rows[:1]:
        postgres.detect_pooler(connection, pid)
    return [value for value, _ in rows]
