"""PostgreSQL sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import BoundedSemaphore, Lock
from time import monotonic

import psycopg

from drain.config import Settings
from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.errors import DrainError, UnavailableError
from drain.read import queries
from drain.read.snapshots import snapshot

SESSIONS = 4
STATEMENT_SECONDS = 5
_LOCK_SECONDS = 2
_WAIT_SECONDS = 2.0
# Back off from an unreachable server.
_AWAY_SECONDS = 1.0
# Older idle sessions are checked before use.
_FRESH_SECONDS = 1.0


class Sessions:
    """Bounded set of sessions. Thread-safe.

    Raises:
        UnavailableError: From all methods: PostgreSQL is unreachable or too slow, or no session becomes free.
        SchemaError: The database lacks our schema.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._free = BoundedSemaphore(SESSIONS)
        self._lock = Lock()
        self._kept: list[tuple[float, Connection]] = []
        self._away: tuple[float, DrainError] | None = None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Lend a read-only autocommit session."""
        if not self._free.acquire(timeout=_WAIT_SECONDS):
            raise UnavailableError(f"all {SESSIONS} sessions of the page are busy; try again in a moment")
        try:
            connection = self._take() or self._connect()
            try:
                with self._bounded(connection):
                    yield connection
            finally:
                self._give_back(connection)
        finally:
            self._free.release()

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Lend a session in a snapshot whose plans never read a whole table."""
        with self.reading() as connection, snapshot(connection):
            connection.execute(f"SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a session for one write, in a transaction."""
        connection = postgres.connect(self._settings.database_url, "drain web write")
        try:
            with self._bounded(connection):
                postgres.limit_session(
                    connection, statement_seconds=STATEMENT_SECONDS, lock_seconds=_LOCK_SECONDS
                )
                schema.check(connection)
                with connection.transaction():
                    yield queries.with_lenient_values(connection)
        finally:
            connection.close()

    def close(self) -> None:
        """Close idle sessions."""
        with self._lock:
            kept, self._kept = self._kept, []
        for _, connection in kept:
            connection.close()

    @contextmanager
    def _bounded(self, connection: Connection) -> Iterator[None]:
        with (
            postgres.reachable(self._settings.database_url),
            postgres.time_limit(connection, 2 * STATEMENT_SECONDS),
        ):
            yield

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._kept:
                    return None
                since, connection = self._kept.pop()
            if monotonic() - since < _FRESH_SECONDS:
                return connection
            with suppress(psycopg.Error), postgres.time_limit(connection, _WAIT_SECONDS):
                connection.execute("SELECT")
                return connection
            connection.close()

    def _connect(self) -> Connection:
        if self._away and monotonic() < self._away[0]:
            raise self._away[1]
        settings = postgres.session_settings(statement_seconds=STATEMENT_SECONDS, lock_seconds=_LOCK_SECONDS)
        settings["default_transaction_read_only"] = "on"
        try:
            connection = postgres.connect(self._settings.database_url, "drain web", settings=settings)
            with self._bounded(connection):
                schema.check(connection)
        except DrainError as error:
            self._away = (monotonic() + _AWAY_SECONDS, error)
            raise
        self._away = None
        return queries.with_lenient_values(connection)

    def _give_back(self, connection: Connection) -> None:
        if connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.close()
            return
        with self._lock:
            self._kept.append((monotonic(), connection))
