"""Connections to PostgreSQL in which every wait has a bound, and errors that never show a password."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, LiteralString
from weakref import WeakSet

import psycopg

from drain.database.deadline import limited
from drain.database.url import conninfo, describe, without_password
from drain.errors import ConfigError, UnavailableError

Connection = psycopg.Connection[Any]

# No statement of ours runs for long enough to be worth compiling, and where statistics are missing or old a server
# with JIT, which is how it is packaged, compiles what it takes for long: measured, 0.4 to 1.4 s for each statement.
_NEVER_COMPILE = {"jit": "off"}
# What the server says as it ends a session or a transaction of ours, or as it takes no writes for now. For
# psycopg these are no OperationalErrors.
_ENDED_BY_THE_SERVER = {"25P03", "25P04", "25006"}

# The longest wait for the first answer on a new connection: a pooler may have no session for us.
_FIRST_ANSWER_SECONDS = 15.0

BACKEND_PID: LiteralString = "SELECT pg_backend_pid()"

# Connections that reach their session through a pooler, which may give it to somebody else as soon as the
# transaction ends.
_pooled: WeakSet[Connection] = WeakSet()

# URLs of poolers that take no settings as a client connects. A forked child knows what its parent has learnt.
_take_no_settings: set[str] = set()


def connect(
    database_url: str,
    application_name: str,
    *,
    settings: Mapping[str, str] = _NEVER_COMPILE,
    kind: type[Connection] = psycopg.Connection,
) -> Connection:
    """Open a connection in autocommit mode: transactions are begun where they are needed, in sight.

    Through a pooler it leaves nothing behind in the session: no statement is prepared.

    Args:
        database_url: Where.
        application_name: As the server shows it.
        settings: As for `dial`.
        kind: The class of the connection.

    Raises:
        ConfigError: The URL cannot be read.
        UnavailableError: The server cannot be reached, or refuses.
    """
    connection = dial(database_url, application_name, settings=settings, kind=kind)
    try:
        with reachable(database_url), time_limit(connection, _FIRST_ANSWER_SECONDS):
            detect_pooler(connection, backend_pid(connection))
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
    settings: Mapping[str, str] = _NEVER_COMPILE,
    kind: type[Connection] = psycopg.Connection,
) -> Connection:
    """Open a connection in autocommit mode, and ask nothing on it.

    Args:
        database_url: Where.
        application_name: As the server shows it.
        settings: Settings of the session. They travel with the first message, so they cost no exchange. A pooler that
            takes none of them gets none: others would inherit them.
        kind: The class of the connection.

    Raises:
        ConfigError: The URL cannot be read.
        UnavailableError: The server cannot be reached, or refuses.
    """
    with reachable(database_url):
        if settings and database_url not in _take_no_settings:
            try:
                return _connect(conninfo(database_url, application_name, settings), kind)
            except psycopg.OperationalError as error:
                # PgBouncer's words, and those of RDS Proxy.
                if not any(word in str(error) for word in ("startup parameter", "command-line options")):
                    raise
            _take_no_settings.add(database_url)
        return _connect(conninfo(database_url, application_name), kind)


def _connect(text: str, kind: type[Connection]) -> Connection:
    try:
        return kind.connect(text, autocommit=True)
    except UnicodeError:
        raise ConfigError("DRAIN_DATABASE_URL cannot be read: its host is no name of a host") from None


def backend_pid(connection: Connection) -> int:
    """Process id of the session that the server has just given us."""
    (pid,) = fetch_one(connection, BACKEND_PID)
    return int(pid)


def detect_pooler(connection: Connection, pid: int) -> None:
    """Find out whether a pooler stands between, and remember it.

    Args:
        connection: Any, somebody else's too.
        pid: What the server has just called its process.
    """
    # PostgreSQL names the same process as it greets. A pooler greets by itself, and makes a number up.
    if pid != connection.info.backend_pid:
        _pooled.add(connection)


def is_pooled(connection: Connection) -> bool:
    """Whether its session may be somebody else's between two transactions, as far as is known."""
    return connection in _pooled


def mark_session_as_own(connection: Connection) -> None:
    """Take note that a pooler stands between, and leaves this connection its session nevertheless."""
    _pooled.discard(connection)


@contextmanager
def reachable(database_url: str) -> Iterator[None]:
    """Turn what psycopg says of a lost, refused or timed-out connection into one line of ours.

    Raises:
        UnavailableError: In place of psycopg's own; also for a server that takes no writes for now.
    """
    try:
        yield
    except psycopg.Error as error:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if not lost and error.sqlstate not in _ENDED_BY_THE_SERVER:
            raise
        raise unavailable(error, database_url) from None


def unavailable(error: BaseException, database_url: str) -> UnavailableError:
    """What a driver says of a server that is away, as one line of ours without the password."""
    return UnavailableError(
        f"PostgreSQL at {describe(database_url)} cannot be used: {without_password(error, database_url)}"
    )


@contextmanager
def transaction(connection: Connection, isolation: psycopg.IsolationLevel) -> Iterator[None]:
    """One transaction at this isolation level, committed at the end of the block, rolled back if it raises."""
    connection.isolation_level = isolation
    with connection.transaction():
        yield


@contextmanager
def time_limit(connection: Connection, seconds: float) -> Iterator[None]:
    """Break the connection if the block takes longer: for a server that accepts and never answers.

    The server's own timeouts cannot help there, and TCP sees nothing wrong.

    Raises:
        psycopg.OperationalError: From within the block, as for any lost connection.
    """
    with limited(seconds, partial(break_off, connection)):
        yield


def break_off(connection: Connection) -> None:
    """End a connection from another thread: whoever waits on it gets an OperationalError."""
    # The descriptor is libpq's: a copy of it is shut down, and libpq closes its own.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def limit_session(
    connection: Connection, *, statement_seconds: int, lock_seconds: int, idle_seconds: int = 0
) -> None:
    """Bound every statement of the session, every wait for a lock, and the session's life without us; compile nothing.

    The server notices within some ten seconds that our machine is gone, and lets go of our locks.

    Sets nothing through a pooler, where others would inherit it; there `time_limit` is all there is.

    Args:
        connection: In autocommit mode.
        statement_seconds: The longest statement.
        lock_seconds: The longest wait for a lock.
        idle_seconds: The longest pause between two statements; 0 for no bound outside of a transaction, and that of a
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
    """Settings of a session of ours: the bounds of `limit_session`, and that nothing is compiled."""
    return _NEVER_COMPILE | {
        "statement_timeout": f"{statement_seconds}s",
        "lock_timeout": f"{lock_seconds}s",
        "idle_in_transaction_session_timeout": f"{idle_seconds or statement_seconds}s",
        "idle_session_timeout": f"{idle_seconds}s",
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        # Whatever a plan seems to cost: compiling takes up to a second, and our statements find few rows each.
    }


def fails_for_any_row(error: psycopg.Error) -> bool:
    """Whether the same statement would fail for any row: a lost connection, a missing table, no rights."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return True
    state = error.sqlstate or ""
    return state in _ENDED_BY_THE_SERVER or state.startswith("42")


def fetch_one(
    connection: Connection, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any] = ()
) -> tuple[Any, ...]:
    """The only row of a statement that always has one."""
    row: tuple[Any, ...] | None = connection.execute(statement, parameters).fetchone()
    if row is None:
        raise psycopg.DataError("a row was expected and none came")
    return row
