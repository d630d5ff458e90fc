"""Session whose transaction cannot be committed, and the rows written in it.

Two rows of a temporary table violate a deferred constraint, so PostgreSQL turns any COMMIT, even one hidden in a job's
SQL, into a rollback. Transactions that a job begins afterwards are read-only by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from drain.database import postgres, schema, url
from drain.database.postgres import Connection, fetch_one
from drain.errors import ConfigError
from drain.tables import leader_progress
from drain.workers.context.connection_cache import settings_of_jobs

APPLICATION_NAME = "drain rehearse"
READ_ONLY = {"default_transaction_read_only": "on"}
# A commit would violate this constraint.
GUARD = "a_rehearsal_is_never_committed"
_BEGIN = f"""
BEGIN READ WRITE;
CREATE TEMPORARY TABLE drain_rehearsal (
    guard boolean CONSTRAINT {GUARD} UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO drain_rehearsal VALUES (true), (true);
SAVEPOINT drain_rehearsal
"""
# Checks a commit without the guard, and restores it.
_CHECK = b"""
SAVEPOINT drain_rehearsal_check;
DELETE FROM pg_temp.drain_rehearsal;
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK TO SAVEPOINT drain_rehearsal_check;
RELEASE SAVEPOINT drain_rehearsal_check
"""
_REPAIR = b"ROLLBACK TO SAVEPOINT drain_rehearsal"
_TRANSACTION = "SELECT pg_current_xact_id()::text"
_STILL = "SELECT pg_current_xact_id_if_assigned()::text, to_regclass('pg_temp.drain_rehearsal') IS NOT NULL"
# Rows written in this transaction, including rolled-back savepoints.
_WRITTEN = """
SELECT root::regclass::text, root = to_regclass('staged_jobs'), sum(inserted)::bigint, sum(updated)::bigint,
    sum(deleted)::bigint
FROM (
    SELECT coalesce(pg_partition_root(relid), relid)::oid AS root, n_tup_ins AS inserted, n_tup_upd AS updated,
        n_tup_del AS deleted
    FROM pg_stat_xact_user_tables WHERE schemaname !~ '^pg_' AND n_tup_ins + n_tup_upd + n_tup_del > 0) AS written
GROUP BY root ORDER BY 1
"""


@dataclass(frozen=True)
class Rows:
    """Rows written to a table."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass
class Written:
    """Rows that a job wrote, all rolled back.

    Attributes:
        staged: Number of jobs staged.
        has_left: The job ended the transaction by its own SQL, which was undone.
    """

    tables: dict[str, Rows] = field(default_factory=dict)
    staged: int = 0
    has_left: bool = False


class GuardedSession:
    """Transaction that cannot be committed, on an idle autocommit connection that is read-only by default."""

    def __init__(self, connection: Connection, installation: UUID) -> None:
        self._connection = connection
        self.installation = installation
        for statement in _BEGIN.split(";"):
            connection.execute(statement.encode())
        (self._transaction,) = fetch_one(connection, _TRANSACTION)

    @property
    def pgconn(self) -> PGconn:
        """The session."""
        return self._connection.pgconn

    def written(self) -> Written:
        """Return the job's writes."""
        status = self.pgconn.transaction_status
        if status == TransactionStatus.INERROR:
            # The counts survive.
            send(self.pgconn, _REPAIR)
        elif status != TransactionStatus.INTRANS:
            return Written(has_left=True)
        transaction, is_guarded = fetch_one(self._connection, _STILL)
        if transaction != self._transaction or not is_guarded:
            return Written(has_left=True)
        found = Written()
        for table, is_staged, *numbers in self._connection.execute(_WRITTEN):
            found.tables[table] = rows = Rows(*numbers)
            found.staged += rows.inserted if is_staged else 0
        return found


@contextmanager
def guarded_session(database_url: str) -> Iterator[GuardedSession]:
    """Open a session whose transaction is always rolled back.

    Raises:
        ConfigError: The connection goes through a pooler, or the role may not create temporary tables.
        UnavailableError: The server is unreachable.
    """
    settings = settings_of_jobs(database_url) | READ_ONLY
    connection = postgres.connect(database_url, APPLICATION_NAME, settings=settings)
    try:
        _require_settings(connection, database_url)
        schema.check(connection)
        connection.prepare_threshold = None
        yield GuardedSession(connection, leader_progress.installation(connection))
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"a rehearsal needs the right TEMPORARY on the database: {error.diag.message_primary}"
        ) from None
    finally:
        with suppress(psycopg.Error):
            # Closing would suffice, but this releases locks before returning.
            send(connection.pgconn, b"ROLLBACK")
        connection.close()


def check_as_a_commit(pgconn: PGconn) -> None:
    """Check deferred constraints, as a commit would; psycopg.Error if violated."""
    send(pgconn, _CHECK)


def send(pgconn: PGconn, command: bytes) -> None:
    """Execute a command."""
    result = pgconn.exec_(command)
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise psycopg.errors.error_from_result(result)


def _require_settings(connection: Connection, database_url: str) -> None:
    (read_only,) = fetch_one(connection, "SHOW default_transaction_read_only")
    if postgres.is_pooled(connection) or read_only != "on":
        raise ConfigError(
            f"{url.describe(database_url)} is a pooler, which may give the session of a rehearsal to others: give it a "
            "DRAIN_DATABASE_URL that leads to PostgreSQL itself"
        )
