"""Short queries."""

from __future__ import annotations

from typing import Any

from drain.database.postgres import Connection


def first_row(connection: Connection, statement: str, *parameters: Any) -> tuple[Any, ...] | None:
    """Query the first row; None if there is none."""
    row: tuple[Any, ...] | None = connection.execute(statement.encode(), parameters).fetchone()
    return row


def value(connection: Connection, statement: str, *parameters: Any) -> Any:
    """Query the only column of the first row; None if there is no row."""
    row = first_row(connection, statement, *parameters)
    return None if row is None else row[0]
