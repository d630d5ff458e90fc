"""Partitions of `finished_jobs`, one a day: made before their day, dropped when the day has been archived."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from psycopg import Rollback

from drain.database import locks
from drain.database.postgres import Connection, fetch_one

# Partition with the rows of all days that have no partition of their own.
OTHER = "finished_jobs_other"

_MAKE_DAYS = "SELECT drain_make_days(%s::integer)"
_DAYS = r"""
SELECT oid::regclass::text, to_date(right(relname::text, 8), 'YYYYMMDD') AS day
FROM pg_partition_tree('finished_jobs'::regclass) JOIN pg_class ON oid = relid::oid
WHERE relname::text ~ '^finished_jobs_\d{8}$' ORDER BY day
"""
_TODAY = "SELECT (now() AT TIME ZONE 'UTC')::date"
_LATE_DAYS = """
SELECT DISTINCT (finished_at AT TIME ZONE 'UTC')::date FROM finished_jobs_other
WHERE finished_at < (%s::date)::timestamp AT TIME ZONE 'UTC'
"""
_CHECKSUM = "SELECT counted, checksum FROM drain_checksum_of(%s::regclass)"
_CHECKSUM_OF_LATE = "SELECT counted, checksum FROM drain_checksum_of_late(%s::date)"
_MAY_BE_LATE = f"SELECT pg_relation_size('{OTHER}'::regclass) > 0"
_SIZE = "SELECT pg_table_size(%s::regclass)"
_DROP_DAY = "SELECT drain_drop_day(%s::regclass, %s::bigint, %s::numeric)"
_DROP_OLD_DAY = "SELECT day, jobs FROM drain_drop_old_day(%s::integer)"
_JOBS_OF_DAY = """
SELECT coalesce(
    (SELECT reltuples::bigint FROM pg_class
     WHERE oid = to_regclass(%(partition)s::text)::oid AND reltuples >= 0::real
        AND pg_relation_size(oid::regclass) >= 64 * 1024 * 1024),
    (SELECT count(*) FROM finished_jobs WHERE finished_at >= %(begin)s AND finished_at < %(end)s))
"""
_DROPPED = "SELECT dropped_before, dropped_up_to FROM drain_state"
# Settings under which times are spelled as in drain_checksum_of_late.
_SPELLING = "SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'"
# One statement, so that exactly the deleted rows are counted.
_DELETE_LATE = """
WITH job AS (
    DELETE FROM finished_jobs_other WHERE finished_at >= %(day)s::date AND finished_at < %(day)s::date + 1 RETURNING *
)
SELECT count(*), coalesce(sum(hashtextextended(job::text, 0::bigint)), 0) FROM job
"""
_SEEN = """
SELECT extract(epoch FROM now())::float8, pg_snapshot_xmax(seen)::text,
    array(SELECT xid::text::bigint FROM pg_snapshot_xip(seen) AS xid)
FROM pg_current_snapshot() AS seen
"""
# Statement for a person, after rows have come here with a dump from a server whose transaction ids were higher.
ADOPT = "UPDATE finished_jobs SET finished_xid = DEFAULT WHERE finished_xid >= pg_snapshot_xmax(pg_current_snapshot())"
_NEXT_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


class Day(NamedTuple):
    """Day, and the table with its rows: the partition of that day alone, or `OTHER`."""

    partition: str
    date: date


class Checksum(NamedTuple):
    """Count and checksum of all rows of a day, in any order."""

    rows: int
    value: int


class Dropped(NamedTuple):
    """Day that was dropped, and the number of its jobs: an estimate if there were very many."""

    date: date
    jobs: int


def try_to_archive(connection: Connection) -> bool:
    """Take the lock of `drain archive` for as long as the session lives; False if another session keeps it."""
    return locks.lock_for_command(connection, locks.ARCHIVE)


def may_be_late(connection: Connection) -> bool:
    """Return False if no row can be late: none is outside of the days' partitions. Needs no right on them."""
    (found,) = fetch_one(connection, _MAY_BE_LATE)
    return bool(found)


def make_days(connection: Connection, ahead: int) -> int:
    """Make the missing partitions of today and of `ahead` days after it; returns how many were made."""
    (made,) = fetch_one(connection, _MAKE_DAYS, (ahead,))
    return int(made)


def days(connection: Connection) -> list[Day]:
    """List the days that have a partition, the oldest first."""
    return [Day._make(row) for row in connection.execute(_DAYS)]


def today(connection: Connection) -> date:
    """Return the day that is not over, by the database's clock and UTC."""
    found: date
    (found,) = fetch_one(connection, _TODAY)
    return found


def closed_days(connection: Connection, keep: int = 0) -> list[Day]:
    """List the days that are over and in Postgres, the oldest first; without the last `keep` of them.

    Days without a partition are among them, if `OTHER` has rows of theirs.
    """
    end = today(connection) - timedelta(days=keep)
    closed = [day for day in days(connection) if day.date < end]
    closed += [Day(OTHER, late) for (late,) in connection.execute(_LATE_DAYS, (end,))]
    return sorted(closed, key=lambda day: day.date)


def checksum(connection: Connection, day: Day) -> Checksum:
    """Return count and checksum of a day, for `remove_day`; in the snapshot of the open transaction."""
    if day.partition == OTHER:
        return Checksum._make(fetch_one(connection, _CHECKSUM_OF_LATE, (day.date,)))
    return Checksum._make(fetch_one(connection, _CHECKSUM, (day.partition,)))


def size(connection: Connection, day: Day) -> int:
    """Return the size in bytes of the table with a day's rows."""
    (found,) = fetch_one(connection, _SIZE, (day.partition,))
    return int(found)


def remove_day(connection: Connection, day: Day, expected: Checksum) -> bool:
    """Drop the day's partition, or delete its rows from `OTHER`, if the rows are still as expected; False if not.

    Args:
        connection: In autocommit mode, at read committed.
        day: Day that has been archived.
        expected: Count and checksum of the archived rows.

    Raises:
        psycopg.errors.LockNotAvailable: Another session is using the partition.
    """
    if day.partition == OTHER:
        return _delete_late(connection, day.date, expected)
    (dropped,) = fetch_one(connection, _DROP_DAY, (day.partition, *expected))
    return bool(dropped)


def drop_old_day(connection: Connection, keep: int) -> Dropped | None:
    """Drop the oldest day that is over, unless it is one of the last `keep`; None if there is none.

    Nothing is archived. Of a day without a partition some thousand rows are deleted at a time. None also while another
    session holds the lock of `try_to_archive`.

    Args:
        connection: In autocommit mode, at read committed.
        keep: Number of days, from 1: today and the day before it always stay.

    Raises:
        psycopg.errors.LockNotAvailable: Another session is using the table.
    """
    day, jobs = fetch_one(connection, _DROP_OLD_DAY, (keep,))
    return None if day is None else Dropped(day, int(jobs))


def count_jobs(connection: Connection, day: Day) -> int:
    """Count the jobs of a day: exactly, or by PostgreSQL's estimate for a partition of 64 MB or more."""
    begin = datetime(day.date.year, day.date.month, day.date.day, tzinfo=UTC)
    # All days without a partition share one table, whose size says nothing about a day.
    partition = None if day.partition == OTHER else day.partition
    given = {"partition": partition, "begin": begin, "end": begin + timedelta(days=1)}
    (jobs,) = fetch_one(connection, _JOBS_OF_DAY, given)
    return int(jobs)


def dropped_up_to(connection: Connection) -> tuple[date | None, int]:
    """Return the day before which days were dropped unarchived, and their highest id; None and 0 if none was."""
    before, up_to = fetch_one(connection, _DROPPED)
    return before, int(up_to or 0)


def next_transaction(connection: Connection) -> int:
    """Return the xmax of a new snapshot: no transaction that begins from now on has a lower `finished_xid`.

    Open transactions may have a lower one, and their rows are not visible to the snapshot either.
    """
    (number,) = fetch_one(connection, _NEXT_TRANSACTION)
    return int(number)


def visible_transactions(connection: Connection) -> tuple[datetime, int, list[int]]:
    """Describe the snapshot of the open transaction: its time, its xmax, and the transactions open at that time.

    Visible are the rows of all transactions with a number below xmax, but for the open ones.

    Args:
        connection: With a repeatable-read transaction open.
    """
    seconds, xmax, unseen = fetch_one(connection, _SEEN)
    return datetime.fromtimestamp(seconds, UTC), int(xmax), list(unseen)


def clock(connection: Connection) -> float:
    """Read the database's clock, in seconds since 1970."""
    (seconds,) = fetch_one(connection, _CLOCK)
    return float(seconds)


def _delete_late(connection: Connection, day: date, expected: Checksum) -> bool:
    with connection.transaction() as transaction:
        connection.execute(_SPELLING)
        deleted = Checksum._make(fetch_one(connection, _DELETE_LATE, {"day": day}))
        if deleted != expected:
            raise Rollback(transaction)
    return deleted == expected
