"""Footprint of the tables on the server: rows, dead rows, bytes, WAL, and what keeps vacuum back; for the metrics.

No question reads a row of a table, and none needs a right on one. PostgreSQL tells of the transactions of other roles
only to members of pg_read_all_stats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one

TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs", "stale_finishes")
_READY_PARTITIONS = ("staged_jobs_ready_0", "staged_jobs_ready_1", "staged_jobs_ready_2")
# The partitions come from the catalogue: pg_partition_tree() would lock each of them.
_PARTITIONS = """
WITH RECURSIVE part AS (
    SELECT name, name::regclass::oid AS relation FROM pg_catalog.unnest(%(tables)s::text[]) AS whole (name)
    UNION ALL
    SELECT part.name, inhrelid FROM part JOIN pg_inherits ON inhparent = part.relation
)
"""
ROWS = f"""{_PARTITIONS}
SELECT name, sum(pg_stat_get_live_tuples(relation))::float8, sum(pg_stat_get_dead_tuples(relation))::float8
FROM part GROUP BY name
"""
# NULL for a partition that was dropped meanwhile.
BYTES = f"""{_PARTITIONS}
SELECT name, coalesce(sum(pg_total_relation_size(relation)), 0)::float8 FROM part GROUP BY name
"""
# Upper bound of the wait for the lock of a partition that is being dropped or truncated.
_SHORT_LOCKS = "SET LOCAL lock_timeout = '50ms'"
SERVER = """
SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::float8, (
    SELECT count(*) FROM pg_catalog.unnest(%(partitions)s::text[]) AS ready (name)
    WHERE pg_relation_size(name::regclass) > 0)
"""
_SEES_ALL = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"
# Vacuum ignores other vacuums, and the transactions of other databases.
OLDEST_TRANSACTION = """
SELECT greatest(0,
    (SELECT date_part('epoch', clock_timestamp() - min(xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
            AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND backend_type <> 'autovacuum worker'),
    (SELECT date_part('epoch', clock_timestamp() - min(prepared)) FROM pg_prepared_xacts
        WHERE database = current_database()))
"""


class TableRows(NamedTuple):
    """Rows of a table with all its partitions, by PostgreSQL's statistics.

    Attributes:
        table: Its name.
        live: Number of rows.
        dead: Number of row versions that vacuum has to remove.
    """

    table: str
    live: float
    dead: float


class Server(NamedTuple):
    """Footprint on the server.

    Attributes:
        wal_bytes: Position of the WAL, which only grows.
        ready_partitions: Number of partitions of ready rows that occupy the disk.
    """

    wal_bytes: float
    ready_partitions: int


def count_rows(connection: Connection) -> list[TableRows]:
    """Read the numbers of rows of each table."""
    return [TableRows._make(row) for row in connection.execute(ROWS, _names(TABLES))]


def measure_bytes(connection: Connection) -> dict[str, float]:
    """Measure the bytes of each table on disk, with its indexes and long values; a few system calls a partition."""
    with connection.transaction():
        connection.execute(_SHORT_LOCKS)
        return dict(connection.execute(BYTES, _names(TABLES)).fetchall())


def measure_server(connection: Connection) -> Server:
    """Measure what is known of the server."""
    return Server._make(fetch_one(connection, SERVER, {"partitions": list(_READY_PARTITIONS)}))


def sees_all_transactions(connection: Connection) -> bool:
    """Return True if the role is told of the transactions of others."""
    (sees_all,) = fetch_one(connection, _SEES_ALL)
    return bool(sees_all)


def oldest_transaction_seconds(connection: Connection) -> float:
    """Return the age of the oldest open transaction that keeps dead rows from being removed; 0 without one."""
    (seconds,) = fetch_one(connection, OLDEST_TRANSACTION)
    return float(seconds)


def _names(tables: Sequence[str]) -> dict[str, list[str]]:
    return {"tables": list(tables)}
