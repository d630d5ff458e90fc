"""Connections kept for jobs' transactions: one for sessions, one bare."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from drain import urls
from drain.database import postgres
from drain.workers.context.connection import JobConnection
from drain.workers.context.lent_connections import lender

if TYPE_CHECKING:
    import sqlalchemy

# By process and URL: a forked child must neither use nor close its parent's.
_engines: dict[tuple[int, str], sqlalchemy.Engine] = {}
_kept: dict[tuple[int, str], list[JobConnection]] = {}
_kept_for_sessions: dict[tuple[int, str], list[sqlalchemy.Connection]] = {}
# Of each kind.
_most = 1

APPLICATION_NAME = "drain job"


def keep(number: int) -> None:
    """Keep this many connections of each kind: one per thread."""
    global _most  # noqa: PLW0603
    _most = number


@contextmanager
def bare(database_url: str) -> Iterator[JobConnection]:
    """Yield an idle connection; keep one after success."""
    if (lending := lender.get()) is not None:
        with lending.bare() as lent:
            yield lent
        return
    kept = _kept.setdefault((os.getpid(), database_url), [])
    connection = _one_of(kept) or connect(database_url)
    try:
        yield connection
    except BaseException:
        # A refused commit or a signal may leave its transaction open.
        connection.close()
        raise
    # `async def` jobs share one.
    if len(kept) >= _most or not connection.is_fit():
        connection.close()
    else:
        kept.append(connection)


def _one_of(kept: list[JobConnection]) -> JobConnection | None:
    # Another thread may take the last one.
    with suppress(IndexError):
        while True:
            connection = kept.pop()
            if connection.is_fit():
                return connection
            connection.close()
    return None


@contextmanager
def of_session(database_url: str) -> Iterator[sqlalchemy.Connection]:
    """Yield a connection for a session; see `bare`.

    SQLAlchemy's pool would take a tenth of the processor time of a one-statement job.
    """
    if (lending := lender.get()) is not None:
        with lending.of_session() as lent:
            yield lent
        return
    kept = _kept_for_sessions.setdefault((os.getpid(), database_url), [])
    connection = _one_for_sessions(kept) or _engine(database_url).connect()
    try:
        yield connection
    except BaseException:
        # A rollback would fail after a signal left a statement unanswered.
        discard(connection)
        raise
    if len(kept) >= _most or not _is_fit_for_sessions(connection):
        discard(connection)
    else:
        kept.append(connection)


def _one_for_sessions(kept: list[sqlalchemy.Connection]) -> sqlalchemy.Connection | None:
    with suppress(IndexError):
        while True:
            connection = kept.pop()
            if _is_fit_for_sessions(connection):
                return connection
            discard(connection)
    return None


def _is_fit_for_sessions(connection: sqlalchemy.Connection) -> bool:
    return is_as_made(connection) and driver_of(connection).is_fit()


def is_as_made(connection: sqlalchemy.Connection) -> bool:
    """Return True if unchanged; else the next job would have its options, listeners and failed transaction."""
    return not (
        connection.closed
        or connection.invalidated
        or connection.get_execution_options()
        or connection._has_events
        or connection.get_transaction()
    )


def discard(connection: sqlalchemy.Connection) -> None:
    """Close at once."""
    with suppress(Exception):
        connection.invalidate()
    connection.close()


def _engine(database_url: str) -> sqlalchemy.Engine:
    # Slow to import, and most jobs have no session.
    import sqlalchemy

    key = (os.getpid(), database_url)
    if key not in _engines:
        _engines[key] = sqlalchemy.create_engine(
            "postgresql+psycopg://",
            creator=lambda: connect(database_url),
            poolclass=sqlalchemy.NullPool,
        )
    return _engines[key]


def driver_of(connection: sqlalchemy.Connection) -> JobConnection:
    """Return the psycopg connection below SQLAlchemy's."""
    return cast(JobConnection, connection.connection.driver_connection)


def close_all() -> None:
    """Close kept connections."""
    for (pid, _), for_sessions in _kept_for_sessions.items():
        while pid == os.getpid() and for_sessions:
            discard(for_sessions.pop())
    for (pid, _), kept in _kept.items():
        while pid == os.getpid() and kept:
            kept.pop().close()


def connect(database_url: str, **settings: str) -> JobConnection:
    """Open a connection with the settings of jobs, and these."""
    connection = cast(
        JobConnection,
        postgres.connect(
            database_url,
            APPLICATION_NAME,
            settings=settings_of_jobs(database_url) | settings,
            kind=JobConnection,
        ),
    )
    connection.be_ready()
    return connection


def settings_of_jobs(database_url: str) -> dict[str, str]:
    """Return the settings of jobs' transactions."""
    # Statements may last as long as the job; the server releases the locks of a lost machine.
    settings = postgres.session_settings(statement_seconds=0, lock_seconds=0)
    if own := urls.schema_of(database_url):
        # Ours first: other schemas may use our table names.
        settings["search_path"] = f'{own},"$user",public'
    return settings
