"""Statements in the transaction that the application has open, on a connection of SQLAlchemy or psycopg.

For calls of several statements; `staging`, whose one statement has to be fast, has its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from drain.errors import SelectionError
from drain.jobs.callers import Connectable

T = TypeVar("T")

# Number of tries of a block that another transaction was in the way of.
_TRIES = 5
# SQLSTATE of a row that another transaction has moved to another partition, and of a deadlock.
_IN_THE_WAY = {"40001", "40P01"}


class OpenTransaction:
    """The transaction that is open on a connection, or begins with the first statement; never committed here.

    Args:
        connection: As for `drain.stage`. On a connection in autocommit mode each block is a transaction of its own.

    Raises:
        SelectionError: The connection is none of these.
    """

    def __init__(self, connection: Connectable) -> None:
        if isinstance(connection, psycopg.Cursor):
            # The caller's cursor may have rows that are not fetched yet.
            connection = connection.connection
        self._psycopg = connection if isinstance(connection, psycopg.Connection) else None
        self._sqlalchemy: Any = None if self._psycopg is not None else _of_sqlalchemy(connection)

    def mark(self, name: str) -> str:
        """Mark of a parameter, in the style of the driver."""
        return f"%({name})s" if self._psycopg is not None else f":{name}"

    def fetch(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Execute a statement; returns its rows."""
        if self._psycopg is not None:
            # Not prepared: behind a pooler, the next transaction may be in a session that lacks it.
            with psycopg.Cursor(self._psycopg, row_factory=tuple_row) as cursor:
                return cursor.execute(statement, parameters, prepare=False).fetchall()
        import sqlalchemy

        return [tuple(row) for row in self._sqlalchemy.execute(sqlalchemy.text(statement), parameters)]

    def together(self, block: Callable[[], T]) -> T:
        """Call a function whose statements have their effect together or not at all, behind a savepoint.

        Again, up to five times, if another transaction was in the way; under repeatable read that does not help.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._savepoint(block)
            except Exception as error:
                if _sqlstate(error) not in _IN_THE_WAY:
                    raise
        return self._savepoint(block)

    def _savepoint(self, block: Callable[[], T]) -> T:
        if self._psycopg is None:
            with self._sqlalchemy.begin_nested():
                return block()
        connection = self._psycopg
        if not connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            # With nothing begun, psycopg would begin a transaction here, and commit it at the end of the block.
            connection.execute("SELECT")
        with connection.transaction():
            return block()


def _of_sqlalchemy(connection: Any) -> Any:
    # Imported here: SQLAlchemy takes longer to import than all else.
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, Session | scoped_session):
        connection = connection.connection()
    if not isinstance(connection, sqlalchemy.Connection):
        raise SelectionError(
            f"cannot work on a {type(connection).__name__}; pass a SQLAlchemy Session or Connection, or a psycopg "
            "connection or cursor"
        )
    return connection


def _sqlstate(error: Exception) -> str | None:
    # SQLAlchemy keeps the driver's error in `orig`; psycopg2 has the code under another name.
    cause = getattr(error, "orig", None) or error
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
