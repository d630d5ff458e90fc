"""`drain_state`: what one leader leaves for the next."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from drain.errors import SchemaError
from drain.postgres import Connection

_LOST = SchemaError("drain_state has lost its only row; schema.sql says how to put it back")


class State(NamedTuple):
    """What a leader has to know of those before it."""

    last_delivery: int
    pushed_up_to: int


def lead(connection: Connection, leader: str) -> State:
    """Write down who leads from now on; returns where the last leader got to."""
    statement = (
        "UPDATE drain_state SET leader = %s, leader_since = clock_timestamp() "
        "RETURNING last_delivery, pushed_up_to"
    )
    row: tuple[int, int] | None = connection.execute(statement, (leader,)).fetchone()
    if row is None:
        raise _LOST
    return State._make(row)


def installation(connection: Connection) -> UUID:
    """What tells this database's jobs from those of any other."""
    row: tuple[UUID] | None = connection.execute("SELECT installation FROM drain_state").fetchone()
    if row is None:
        raise _LOST
    return row[0]


def record_progress(connection: Connection, last_delivery: int, pushed_up_to: int) -> None:
    """Write down the numbers handed out, and the number up to which all have been pushed."""
    connection.execute(
        "UPDATE drain_state SET last_delivery = %s, pushed_up_to = %s",
        (last_delivery, pushed_up_to),
    )
