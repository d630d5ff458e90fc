"""PostgreSQL connections with bounded waits and errors without passwords."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, LiteralString
from weakref import WeakKeyDictionary, WeakSet

import psycopg

from drain import urls
from drain.database import refusals
from drain.database.deadline import limited
from drain.database.url import conninfo, describe, without_password
from drain.errors import ConfigError, UnavailableError

Connection = psycopg.Connection[Any]
AnyConnection = psycopg.BaseConnection[Any]

# Without statistics, JIT compiles even small statements: 0.4 to 1.4 s each, measured.
NEVER_COMPILE = {"jit": "off"}
# Server timeouts and read-only mode, not OperationalErrors for psycopg.
_ENDED_BY_THE_SERVER = {"25P03", "25P04", "25006"}

# A pooler may have no free session.
FIRST_ANSWER_SECONDS = 15.0

BACKEND_PID: LiteralString = "SELECT pg_backend_pid()"
# Schema of our tables, quoted, or NULL.
HOME: LiteralString = """
SELECT relnamespace::pg_catalog.regnamespace::pg_catalog.text FROM pg_catalog.pg_class
WHERE oid = pg_catalog.to_regclass('drain_state')::pg_catalog.oid"""
SESSION: LiteralString = f"SELECT pg_backend_pid(), ({HOME})"

# Without it, the statement of a dead client runs on, with its locks. Other systems refuse the setting.
NOTICE_DEAD_CLIENT: LiteralString = """\
SELECT set_config('client_connection_check_interval', '5s', false) WHERE version() LIKE '%linux%'"""

# Connections to a pooler that may share the session.
_pooled: WeakSet[AnyConnection] = WeakSet()
_homes: WeakKeyDictionary[AnyConnection, str] = WeakKeyDictionary()


def connect(
    database_url: str,
    application_name: str,
    *,
    settings: Mapping[str, str] = NEVER_COMPILE,
    kind: type[Connection] = psycopg.Connection,
) -> Connection:
    """Open a connection in autocommit mode; through a pooler, prepare no statements.

    Raises:
        ConfigError: The URL is invalid.
        UnavailableError: The server is unreachable or refuses.
    """
    connection = dial(database_url, application_name, settings=settings, kind=kind)
    try:
        with reachable(database_url), time_limit(connection, FIRST_ANSWER_SECONDS):
            note_session(connection, *fetch_one(connection, SESSION))
            _require_schema(connection, database_url)
    except BaseException:
        connection.close()
        raise
    if is_pooled(connection):
        connection.prepare_threshold = None
    return connection


def dial(
    database_url: str,
    application_name: str,
    *,
    settings: Mapping[str, str] = NEVER_COMPILE,
    kind: type[Connection] = psycopg.Connection,
) -> Connection:
    """Open a connection in autocommit mode without sending a statement.

    Args:
        settings: Sent in the startup message, unless a pooler refuses them: if set later, they would leak to its
            other clients.

    Raises:
        ConfigError: The URL is invalid.
        UnavailableError: The server is unreachable or refuses.
    """
    with reachable(database_url):
        if settings and refusals.takes_settings(database_url):
            try:
                return _connect(conninfo(database_url, application_name, settings), kind)
            except psycopg.OperationalError as error:
                refusals.note(database_url, error)
        try:
            return _connect(conninfo(database_url, application_name), kind)
        except psycopg.OperationalError as error:
            refusals.raise_if_the_schema_is_out_of_reach(database_url, error)
            raise


def _connect(text: str, kind: type[Connection]) -> Connection:
    with readable_host():
        return kind.connect(text, autocommit=True)


@contextmanager
def readable_host() -> Iterator[None]:
    """Raise a ConfigError for an invalid host."""
    try:
        yield
    except UnicodeError:
        raise ConfigError("DRAIN_DATABASE_URL cannot be read: its host is not a valid host name") from None


def _require_schema(connection: Connection, database_url: str) -> None:
    if is_pooled(connection) and urls.schema_of(database_url):
        (schema,) = fetch_one(connection, refusals.SCHEMA)
        refusals.require_schema(schema, database_url)


def backend_pid(connection: Connection) -> int:
    """Query the server session's process id."""
    (pid,) = fetch_one(connection, BACKEND_PID)
    return int(pid)


def detect_pooler(connection: AnyConnection, pid: int) -> None:
    """Detect a pooler by the process id that a statement returned."""
    # PostgreSQL's startup message has the same id; a pooler makes up its own.
    if pid != connection.info.backend_pid:
        _pooled.add(connection)


def note_session(connection: AnyConnection, pid: int, home: str | None) -> None:
    """Remember the answer to `SESSION`."""
    detect_pooler(connection, pid)
    note_home(connection, home)


def note_home(connection: AnyConnection, home: str | None) -> None:
    """Remember the answer to `HOME`, before the search_path changes."""
    _homes[connection] = home or ""


def home_of(connection: AnyConnection) -> str:
    """Return the schema of our tables; '' if unknown."""
    return _homes.get(connection, "")


def is_pooled(connection: AnyConnection) -> bool:
    """Return True if a pooler may share the session."""
    return connection in _pooled


def mark_session_as_own(connection: Connection) -> None:
    """Record that the pooler does not share this session."""
    _pooled.discard(connection)


@contextmanager
def reachable(database_url: str) -> Iterator[None]:
    """Raise an UnavailableError for lost, refused, timed-out or read-only connections."""
    try:
        yield
    except psycopg.Error as error:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if not lost and error.sqlstate not in _ENDED_BY_THE_SERVER:
            raise
        raise unavailable(error, database_url) from None


def unavailable(error: BaseException, database_url: str) -> UnavailableError:
    """Build a one-line error without the password."""
    return UnavailableError(
        f"PostgreSQL at {describe(database_url)} cannot be used: {without_password(error, database_url)}"
    )


@contextmanager
def transaction(connection: Connection, isolation: psycopg.IsolationLevel) -> Iterator[None]:
    """Run the block in a transaction.

    BEGIN is sent with the first statement if the cursor can.
    """
    connection.isolation_level = isolation
    connection.autocommit = False
    try:
        yield
        connection.commit()
    except BaseException:
        with suppress(psycopg.Error):
            connection.rollback()
        raise
    finally:
        if not connection.closed:
            connection.autocommit = True


@contextmanager
def time_limit(connection: AnyConnection, seconds: float) -> Iterator[None]:
    """Break the connection, with an OperationalError, if the block takes longer.

    Neither TCP nor server timeouts detect a server that never answers.
    """
    with limited(seconds, partial(break_off, connection)):
        yield


def break_off(connection: AnyConnection) -> None:
    """Shut down a connection from another thread; its waits raise OperationalError."""
    # libpq owns the descriptor, so shut down a copy.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def limit_session(
    connection: Connection, *, statement_seconds: int, lock_seconds: int, idle_seconds: int = 0
) -> None:
    """Set timeouts and keepalives, and disable JIT, unless a pooler shares the session.

    The server detects a dead client within about ten seconds and releases its locks.

    Args:
        idle_seconds: Timeout between statements; 0 for none, but `statement_seconds` within a transaction.
    """
    if is_pooled(connection):
        return
    settings = session_settings(
        statement_seconds=statement_seconds, lock_seconds=lock_seconds, idle_seconds=idle_seconds
    )
    calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    connection.execute(f"SELECT {calls}", [text for setting in settings.items() for text in setting])


def session_settings(*, statement_seconds: int, lock_seconds: int, idle_seconds: int = 0) -> dict[str, str]:
    """Return settings for these timeouts, without JIT."""
    return NEVER_COMPILE | {
        "statement_timeout": f"{statement_seconds}s",
        "lock_timeout": f"{lock_seconds}s",
        "idle_in_transaction_session_timeout": f"{idle_seconds or statement_seconds}s",
        "idle_session_timeout": f"{idle_seconds}s",
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
    }


def fails_for_any_row(error: psycopg.Error) -> bool:
    """Return True if the statement would fail for any row."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return True
    state = error.sqlstate or ""
    return state in _ENDED_BY_THE_SERVER or state.startswith("42")


def fetch_one(
    connection: Connection, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] = ()
) -> tuple[Any, ...]:
    """Return the only row of a statement."""
    row: tuple[Any, ...] | None = connection.execute(statement, parameters).fetchone()
    if row is None:
        raise psycopg.DataError("expected one row, got none")
    return row
