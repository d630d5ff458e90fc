"""Connections to PostgreSQL in which every wait has an upper bound, and errors that never show a password."""

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

# Setting of all sessions. Our statements find few rows each, and none is worth compiling; but where statistics are
# missing or old, a server with JIT, as packages have it, compiles them: measured, 0.4 to 1.4 s for each statement.
NEVER_COMPILE = {"jit": "off"}
# SQLSTATEs of a server that ends a session or a transaction by a timeout, or accepts no writes for now. For psycopg
# these are no OperationalErrors.
_ENDED_BY_THE_SERVER = {"25P03", "25P04", "25006"}

# Timeout for the first answer on a new connection: a pooler may have no session left.
FIRST_ANSWER_SECONDS = 15.0

BACKEND_PID: LiteralString = "SELECT pg_backend_pid()"
# Schema of our tables on the search_path, quoted where necessary; null if it has none.
HOME: LiteralString = """
SELECT relnamespace::pg_catalog.regnamespace::pg_catalog.text FROM pg_catalog.pg_class
WHERE oid = pg_catalog.to_regclass('drain_state')::pg_catalog.oid"""
# First question on a new connection.
SESSION: LiteralString = f"SELECT pg_backend_pid(), ({HOME})"

# Connections that reach their session through a pooler, which may give it to another client as soon as the transaction
# ends.
_pooled: WeakSet[AnyConnection] = WeakSet()
_homes: WeakKeyDictionary[AnyConnection, str] = WeakKeyDictionary()


def connect(
    database_url: str,
    application_name: str,
    *,
    settings: Mapping[str, str] = NEVER_COMPILE,
    kind: type[Connection] = psycopg.Connection,
) -> Connection:
    """Open a connection in autocommit mode: transactions begin where the code says so.

    Through a pooler no statement is prepared, so that nothing stays behind in the session.

    Args:
        database_url: URL of the database.
        application_name: Name that the server shows for the session.
        settings: As for `dial`.
        kind: Class of the connection.

    Raises:
        ConfigError: The URL cannot be read.
        UnavailableError: The server cannot be reached, or refuses.
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
    """Open a connection in autocommit mode, and send no statement on it.

    Args:
        database_url: URL of the database.
        application_name: Name that the server shows for the session.
        settings: Settings of the session. They travel with the first message, so they cost no exchange. A pooler that
            refuses them gets none, since its other clients would inherit them.
        kind: Class of the connection.

    Raises:
        ConfigError: The URL cannot be read.
        UnavailableError: The server cannot be reached, or refuses.
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
    """Turn the error of a host that has no name of a host into one of ours."""
    try:
        yield
    except UnicodeError:
        raise ConfigError("DRAIN_DATABASE_URL cannot be read: its host is no name of a host") from None


def _require_schema(connection: Connection, database_url: str) -> None:
    if is_pooled(connection) and urls.schema_of(database_url):
        (schema,) = fetch_one(connection, refusals.SCHEMA)
        refusals.require_schema(schema, database_url)


def backend_pid(connection: Connection) -> int:
    """Ask for the process id of the server's session that this connection has now."""
    (pid,) = fetch_one(connection, BACKEND_PID)
    return int(pid)


def detect_pooler(connection: AnyConnection, pid: int) -> None:
    """Find out whether a pooler stands between program and server, and remember it for this connection.

    Args:
        connection: Any, also one of the application.
        pid: Process id that a statement on it has just returned.
    """
    # PostgreSQL names the same process id in its first message. A pooler sends that message itself, with a number of
    # its own.
    if pid != connection.info.backend_pid:
        _pooled.add(connection)


def note_session(connection: AnyConnection, pid: int, home: str | None) -> None:
    """Remember the answer to `SESSION` for a new connection."""
    detect_pooler(connection, pid)
    note_home(connection, home)


def note_home(connection: AnyConnection, home: str | None) -> None:
    """Remember the answer to `HOME`, before anything changes the search_path."""
    _homes[connection] = home or ""


def home_of(connection: AnyConnection) -> str:
    """Return the schema of our tables, for `within`; an empty text if it is not known."""
    return _homes.get(connection, "")


def is_pooled(connection: AnyConnection) -> bool:
    """Return True if another client may have its session between two transactions, as far as is known."""
    return connection in _pooled


def mark_session_as_own(connection: Connection) -> None:
    """Remember that this connection keeps its session, although a pooler stands between program and server."""
    _pooled.discard(connection)


@contextmanager
def reachable(database_url: str) -> Iterator[None]:
    """Turn psycopg's errors of a lost, refused or timed-out connection into an error of one line.

    Raises:
        UnavailableError: In place of psycopg's own error; also for a server that accepts no writes for now.
    """
    try:
        yield
    except psycopg.Error as error:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if not lost and error.sqlstate not in _ENDED_BY_THE_SERVER:
            raise
        raise unavailable(error, database_url) from None


def unavailable(error: BaseException, database_url: str) -> UnavailableError:
    """Turn a driver's error about an unavailable server into one of ours: one line, without the password."""
    return UnavailableError(
        f"PostgreSQL at {describe(database_url)} cannot be used: {without_password(error, database_url)}"
    )


@contextmanager
def transaction(connection: Connection, isolation: psycopg.IsolationLevel) -> Iterator[None]:
    """Open a transaction at this isolation level: committed at the end of the block, rolled back if it raises.

    It begins with the first statement: where `cursor.TransactionCursor` is the connection's, in the same exchange.
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
    """Break the connection if the block takes longer: for a server that accepts and never answers.

    The server's own timeouts cannot help there, and TCP sees nothing wrong.

    Raises:
        psycopg.OperationalError: From within the block, as for any lost connection.
    """
    with limited(seconds, partial(break_off, connection)):
        yield


def break_off(connection: AnyConnection) -> None:
    """End a connection from another thread: a thread that waits on it gets an OperationalError."""
    # The descriptor belongs to libpq, which closes it: a copy is shut down.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def limit_session(
    connection: Connection, *, statement_seconds: int, lock_seconds: int, idle_seconds: int = 0
) -> None:
    """Limit the session: its statements, its waits for locks, and its pauses; and turn JIT off.

    The server notices within some ten seconds that our machine is gone, and releases the session's locks.

    Sets nothing through a pooler, where other clients would inherit it; there only `time_limit` limits a wait.

    Args:
        connection: In autocommit mode.
        statement_seconds: Timeout for a statement.
        lock_seconds: Timeout for a wait for a lock.
        idle_seconds: Timeout for a pause between two statements; 0 for none outside of a transaction, and that of a
            statement within one.
    """
    if is_pooled(connection):
        return
    settings = session_settings(
        statement_seconds=statement_seconds, lock_seconds=lock_seconds, idle_seconds=idle_seconds
    )
    calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    connection.execute(f"SELECT {calls}", [text for setting in settings.items() for text in setting])


def session_settings(*, statement_seconds: int, lock_seconds: int, idle_seconds: int = 0) -> dict[str, str]:
    """Return the settings of a session: the timeouts of `limit_session`, and no JIT."""
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
    """Return True if the same statement would fail for any row: a lost connection, a missing table, no rights."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return True
    state = error.sqlstate or ""
    return state in _ENDED_BY_THE_SERVER or state.startswith("42")


def fetch_one(
    connection: Connection, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] = ()
) -> tuple[Any, ...]:
    """Return the only row of a statement that always has one."""
    row: tuple[Any, ...] | None = connection.execute(statement, parameters).fetchone()
    if row is None:
        raise psycopg.DataError("a row was expected and none came")
    return row
