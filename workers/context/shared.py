"""One transaction of several short jobs, each behind a savepoint, which commits with the finishes of all.

A job cannot commit it: at any COMMIT, the server reads a cursor WITH HOLD whose query fails, and rolls back. A job that
has ended it otherwise makes the next RELEASE fail, and so the finishes. Either way, each job then runs alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import TransactionStatus

from drain.database import postgres
from drain.database.cursor import IS_TRIED
from drain.database.postgres import fetch_one
from drain.tables import finishes
from drain.workers.context.connection import JobConnection
from drain.workers.context.connection_cache import connect, discard, driver_of, is_as_made
from drain.workers.context.current import Attempt
from drain.workers.context.guarded import is_ended

if TYPE_CHECKING:
    import sqlalchemy

    from drain.workers.context.session import JobSession

_ROLLBACK_SECONDS = 5.0
# Frees a job that waits on another connection for a lock of this transaction.
_IDLE = "2s"
_GUARD = """\
DECLARE {name} CURSOR WITH HOLD FOR SELECT ('a job with commit="shared" cannot commit; its backend is '::pg_catalog.text
    OPERATOR(pg_catalog.||) pg_catalog.pg_backend_pid()::pg_catalog.text)::pg_catalog.int4"""
# What the previous job may have SET.
_RESETS = (b"RESET SESSION AUTHORIZATION", b"RESET ROLE", b"RESET ALL")
_NOTICE_DEAD_CLIENT = b"SET client_connection_check_interval = '5s'"
# As in the finisher's sessions: independent of statistics.
_BY_ID = (b"SET LOCAL enable_seqscan = off", b"SET LOCAL enable_bitmapscan = off")


class _Travelling:
    """Commands that one connection sends along with a job's first statement, and with the finishes.

    Attributes:
        savepoint: Latest one of the present transaction; "" before the first.
    """

    def __init__(self, *, notices_dead_client: bool) -> None:
        self._resets = (*_RESETS, *((_NOTICE_DEAD_CLIENT,) if notices_dead_client else ()))
        self._guard = self.savepoint = ""

    def before(self, savepoint: str) -> tuple[bytes, ...]:
        """Return what a job's first statement takes along."""
        begin = f"SAVEPOINT {savepoint}".encode()
        if not self.savepoint:
            self._guard = f"drain_{os.urandom(8).hex()}"
            return b"BEGIN", _GUARD.format(name=self._guard).encode(), begin
        return (f"RELEASE {self.savepoint}".encode(), *self._resets, begin)

    def last(self) -> tuple[bytes, ...]:
        """Return what the finishes take along."""
        if not self.savepoint:
            return (b"BEGIN", *_BY_ID)
        release, close = f"RELEASE {self.savepoint}".encode(), f"CLOSE {self._guard}".encode()
        return (release, *self._resets, *_BY_ID, close)


class SharedTransaction:
    """Successive transactions of one thread's jobs, on one connection.

    Attributes:
        members: Jobs that have used the present one.
        lent_to: Job that has it now, or never gave it back.
    """

    def __init__(self, database_url: str) -> None:
        self.members: list[Attempt] = []
        self.lent_to: Attempt | None = None
        self._database_url = database_url
        self._is_possible = IS_TRIED
        self._connection: JobConnection | None = None
        self._for_sessions: sqlalchemy.Connection | None = None
        self._travelling = _Travelling(notices_dead_client=False)
        # In the present one.
        self._lent_session = False

    def admits(self, *, for_session: bool) -> bool:
        """Return False if the job needs its own transaction; connect if necessary."""
        if for_session and self._for_sessions is None:
            # Connected before SQLAlchemy was loaded.
            self.close()
        if not self.members and self._is_possible and not self._is_fit():
            self.close()
            self._open()
        return self._connection is not None and not self._connection.closed

    @property
    def is_spent(self) -> bool:
        """True if a job has changed SQLAlchemy's connection for the next ones."""
        return self._lent_session and not self._is_as_made()

    @contextmanager
    def lend(self, attempt: Attempt) -> Iterator[JobConnection]:
        """Yield the connection; if the block raises, undo its writes."""
        connection = self._connection
        assert connection is not None  # noqa: S101  (`admits`)
        self.members.append(attempt)
        self.lent_to = attempt
        savepoint = f"drain_{os.urandom(8).hex()}"
        connection.pending, connection.savepoint = self._travelling.before(savepoint), savepoint
        try:
            yield connection
        except BaseException:
            try:
                connection.rollback()
            except BaseException:  # noqa: BLE001  (an interruption too)
                connection.close()
            raise
        finally:
            # An abandoned block may end during a later transaction.
            if self.lent_to is attempt:
                self.lent_to = None
                if not connection.pending:
                    self._travelling.savepoint = savepoint
                connection.pending, connection.savepoint = (), None
                connection.restore()

    @contextmanager
    def lend_session(self, attempt: Attempt) -> Iterator[JobSession]:
        """Yield a session on the connection; see `lend`."""
        from drain.workers.context.session import shared_session_on

        assert self._for_sessions is not None  # noqa: S101  (`admits`)
        self._lent_session = True
        with self.lend(attempt), shared_session_on(self._for_sessions) as session:
            yield session

    def commit(self, results: Mapping[int, str], seconds: float) -> bool | None:
        """Commit with the finishes of the members that have ended their blocks, and begin another one.

        Args:
            results: JSON to keep, by job.
            seconds: Time limit.

        Returns:
            False if everything is rolled back, None if the connection was lost during the commit.
        """
        connection, finished = self._connection, [each.claim for each in self.members if each.finished]
        try:
            if connection is None or connection.closed or is_ended(connection):
                return False
            connection.pending = self._travelling.last()
            with postgres.time_limit(connection, seconds):
                finishes.finish_all_and_commit(connection, finished, results)
        except psycopg.Error:
            return None if connection is None or connection.closed else False
        finally:
            self._forget()
        return True

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        if self._for_sessions is not None:
            discard(self._for_sessions)
        if self._connection is not None:
            self._connection.close()
        self._connection = self._for_sessions = None

    def _open(self) -> None:
        if "drain.workers.context.session" in sys.modules:
            import sqlalchemy

            engine = sqlalchemy.create_engine(
                "postgresql+psycopg://", creator=self._connect, poolclass=sqlalchemy.NullPool
            )
            self._for_sessions = engine.connect()
            self._connection = driver_of(self._for_sessions)
        else:
            self._connection = self._connect()
        (isolation,) = fetch_one(self._connection, "SHOW transaction_isolation")
        self._connection.rollback()
        self._travelling = _Travelling(notices_dead_client=self._connection.notices_dead_client)
        if isolation != "read committed" or postgres.is_pooled(self._connection):
            self._is_possible = False
            self.close()

    def _connect(self) -> JobConnection:
        return connect(self._database_url, idle_in_transaction_session_timeout=_IDLE)

    def _is_fit(self) -> bool:
        return self._connection is not None and self._connection.is_fit() and self._is_as_made()

    def _is_as_made(self) -> bool:
        used = self._for_sessions
        return used is None or (is_as_made(used) and driver_of(used) is self._connection)

    def _forget(self) -> None:
        self.members, self.lent_to = [], None
        self._lent_session = False
        self._travelling.savepoint = ""
        connection = self._connection
        if connection is None or connection.closed:
            self.close()
            return
        connection.pending = ()
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error), postgres.time_limit(connection, _ROLLBACK_SECONDS):
                connection.rollback()


def shared_by(attempt: Attempt, *, for_session: bool = False) -> SharedTransaction | None:
    """Return the transaction that the job shares; None if it gets its own."""
    shared = attempt.shared
    if isinstance(shared, SharedTransaction) and shared.admits(for_session=for_session):
        return shared
    attempt.shared = None
    return None
