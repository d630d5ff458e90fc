"""Other sessions of PostgreSQL, and the end of their transactions."""

from __future__ import annotations

from typing import NamedTuple

from drain.database.postgres import Connection
from drills.rows import first_row, value

_WRITING = """
SELECT pid, backend_xid::text FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'drain job'
    AND state = 'idle in transaction' AND backend_xid IS NOT NULL
"""
_HELD_UP = """
SELECT pid, backend_xid::text FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'drain run'
    AND backend_xid IS NOT NULL AND wait_event_type = 'Lock'
"""
_STATUS = "SELECT pg_xact_status(%s::text::xid8)"


class Session(NamedTuple):
    """Session of another process.

    Attributes:
        pid: Number of its process on the server.
        transaction: Id of the transaction that is open there.
    """

    pid: int
    transaction: str


def writing_job(connection: Connection) -> Session | None:
    """Find the session of a job that has written in its `transaction()`, and has not committed."""
    row = first_row(connection, _WRITING)
    return None if row is None else Session._make(row)


def held_up(connection: Connection) -> Session | None:
    """Find the session of a leader whose move waits for a lock of another session."""
    row = first_row(connection, _HELD_UP)
    return None if row is None else Session._make(row)


def status(connection: Connection, transaction: str) -> str:
    """Look up the state of a transaction: committed, aborted, or in progress."""
    return str(value(connection, _STATUS, transaction))


def end(connection: Connection, session: Session) -> None:
    """End a session; the server rolls its transaction back, and releases its locks."""
    connection.execute("SELECT pg_terminate_backend(%s, 5000)", (session.pid,))
