"""Notes from leader to leader: `drain_state` and two sequences."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from drain.database.postgres import Connection, fetch_one
from drain.errors import SchemaError

_LOST = SchemaError("drain_state has lost its only row; schema.sql shows how to restore it")


class Progress(NamedTuple):
    """Last delivery number, and that up to which all are pushed."""

    last_delivery: int
    pushed_up_to: int


def record_leader(connection: Connection, leader: str) -> Progress:
    """Record the leader; return earlier progress."""
    statement = "UPDATE drain_state SET leader = %s, leader_since = clock_timestamp()"
    if not connection.execute(statement, (leader,)).rowcount:
        raise _LOST
    return progress(connection)


def installation(connection: Connection) -> UUID:
    """Return the id of this database's jobs."""
    row: tuple[UUID] | None = connection.execute(
        "SELECT installation FROM drain_state WHERE only_row"
    ).fetchone()
    if row is None:
        raise _LOST
    return row[0]


def identity(connection: Connection) -> tuple[str, str]:
    """Return installation and readable name, as in Redis."""
    info = connection.info
    return str(installation(connection)), f"{info.dbname} on {info.host or 'localhost'}:{info.port}"


def progress(connection: Connection) -> Progress:
    """Read the leaders' progress."""
    # In this order: both may grow, and the watermark must not exceed the number.
    (pushed_up_to,) = fetch_one(connection, "SELECT last_value FROM drain_pushed_up_to")
    (last_delivery,) = fetch_one(connection, "SELECT last_value FROM drain_last_delivery")
    return Progress(last_delivery, pushed_up_to)


RECORD_PROGRESS = """
SELECT setval('drain_last_delivery'::regclass, %(last_delivery)s::bigint),
    setval('drain_pushed_up_to'::regclass, %(pushed_up_to)s::bigint)
"""


def record_progress(connection: Connection, last_delivery: int, pushed_up_to: int) -> None:
    """Record both numbers, even if the transaction rolls back."""
    connection.execute(RECORD_PROGRESS, {"last_delivery": last_delivery, "pushed_up_to": pushed_up_to})
