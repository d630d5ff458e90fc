"""Rows, bytes and WAL of the tables, and transactions that hold vacuum back.

Needs no rights on the tables. Only members of pg_read_all_stats see other roles' transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one

TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs", "stale_finishes")
_READY_PARTITIONS = ("staged_jobs_ready_0", "staged_jobs_ready_1", "staged_jobs_ready_2")
# pg_partition_tree() would lock each partition.
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
# NULL if a partition was just dropped.
BYTES = f"""{_PARTITIONS}
SELECT name, coalesce(sum(pg_total_relation_size(relation)), 0)::float8 FROM part GROUP BY name
"""
# A partition may be locked for DROP or TRUNCATE.
_SHORT_LOCKS = "SET LOCAL lock_timeout = '50ms'"
SERVER = """
SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::float8, (
    SELECT count(*) FROM pg_catalog.unnest(%(partitions)s::text[]) AS ready (name)
    WHERE pg_relation_size(name::regclass) > 0)
"""
_SEES_ALL = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"
# Vacuum ignores other vacuums and other databases' transactions.
OLDEST_TRANSACTION = """
SELECT greatest(0,
    (SELECT date_part('epoch', clock_timestamp() - min(xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
            AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND backend_type <> 'autovacuum worker'),
    (SELECT date_part('epoch', clock_timestamp() - min(prepared)) FROM pg_prepared_xacts
        WHERE database = current_database()))
"""


class TableRows(NamedTuple):
    """Live and dead rows, by PostgreSQL's statistics."""

    table: str
    live: float
    dead: float


class Server(NamedTuple):
    """WAL position, and nonempty ready partitions."""

    wal_bytes: float
    ready_partitions: int


def count_rows(connection: Connection) -> list[TableRows]:
    """Read the tables' row statistics."""
    return [TableRows._make(row) for row in connection.execute(ROWS, _names(TABLES))]


def measure_bytes(connection: Connection) -> dict[str, float]:
    """Measure each table's bytes, with indexes and TOAST."""
    with connection.transaction():
        connection.execute(_SHORT_LOCKS)
        return dict(connection.execute(BYTES, _names(TABLES)).fetchall())


def measure_server(connection: Connection) -> Server:
    """Measure WAL and ready partitions."""
    return Server._make(fetch_one(connection, SERVER, {"partitions": list(_READY_PARTITIONS)}))


def sees_all_transactions(connection: Connection) -> bool:
    """Return True if other roles' transactions are visible."""
    (sees_all,) = fetch_one(connection, _SEES_ALL)
    return bool(sees_all)


def oldest_transaction_seconds(connection: Connection) -> float:
    """Return the age of the oldest transaction that holds vacuum back."""
    (seconds,) = fetch_one(connection, OLDEST_TRANSACTION)
    return float(seconds)


def _names(tables: Sequence[str]) -> dict[str, list[str]]:
    return {"tables": list(tables)}
