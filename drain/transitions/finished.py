"""Partitions of `finished_jobs`: made before their day, dropped when the day has been archived."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple

from drain.postgres import Connection, fetch_one
from drain.transitions import id_array

_MAKE_DAYS = "SELECT drain_make_days(%s)"
_DAYS = r"""
SELECT oid::regclass::text, to_date(right(relname, 8), 'YYYYMMDD') AS day
FROM pg_partition_tree('finished_jobs') JOIN pg_class ON oid = relid
WHERE relname ~ '^finished_jobs_\d{8}$' ORDER BY day
"""
_TODAY = "SELECT (now() AT TIME ZONE 'UTC')::date"
_CHECKSUM = "SELECT counted, checksum FROM drain_checksum_of(%s)"
_DROP_DAY = "SELECT drain_drop_day(%s, %s, %s)"
_LATE_DAYS = """
SELECT DISTINCT (finished_at AT TIME ZONE 'UTC')::date FROM finished_jobs_other
WHERE finished_at < date_trunc('day', now(), 'UTC') - make_interval(days => %s) ORDER BY 1
"""
_DELETE_LATE = "DELETE FROM finished_jobs_other WHERE id = ANY (%s::bigint[])"


class Day(NamedTuple):
    """A day's partition, by the name of the table."""

    partition: str
    date: date


class Checksum(NamedTuple):
    """Of all rows of a partition, in any order."""

    rows: int
    value: int


def make_days(connection: Connection, ahead: int) -> int:
    """Make the partitions of today and of so many days after it, if nobody has; returns how many were made."""
    (made,) = fetch_one(connection, _MAKE_DAYS, (ahead,))
    return int(made)


def days(connection: Connection) -> list[Day]:
    """The days that have a partition, the oldest first."""
    return [Day._make(row) for row in connection.execute(_DAYS)]


def closed_days(connection: Connection, keep: int = 0) -> list[Day]:
    """The partitions of days that are over, by the database's clock, the oldest first; not of the last `keep`."""
    (today,) = fetch_one(connection, _TODAY)
    return [day for day in days(connection) if day.date < today - timedelta(days=keep)]


def checksum(connection: Connection, partition: str) -> Checksum:
    """Count and checksum of a partition, as `drop_day` wants them; in the snapshot of the open transaction."""
    return Checksum._make(fetch_one(connection, _CHECKSUM, (partition,)))


def drop_day(connection: Connection, partition: str, expected: Checksum) -> bool:
    """Drop a partition, if its rows are still those; returns whether it is gone.

    Raises:
        psycopg.errors.LockNotAvailable: Somebody is using it.
    """
    (dropped,) = fetch_one(connection, _DROP_DAY, (partition, *expected))
    return bool(dropped)


def late_days(connection: Connection, keep: int = 0) -> list[date]:
    """The days that are over and have rows in `finished_jobs_other`."""
    return [day for (day,) in connection.execute(_LATE_DAYS, (keep,))]


def delete_late(connection: Connection, ids: Sequence[int]) -> int:
    """Delete rows of `finished_jobs_other` that have been archived; returns how many."""
    return connection.execute(_DELETE_LATE, (id_array(ids),)).rowcount
