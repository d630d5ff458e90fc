"""Daily partitions of `finished_jobs`, created ahead and dropped once archived."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from psycopg import Rollback, errors

from drain.database import locks
from drain.database.postgres import Connection, fetch_one

# Rows of days without a partition.
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
_RELATED = """
SELECT count(*), coalesce(sum(pg_column_size(kept)), 0) FROM {table} AS kept WHERE {where}
"""
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
# As drain_checksum_of_late.
_SPELLING = "SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'"
# One statement counts exactly the rows that it deletes.
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
# For operators, after loading a dump with higher transaction ids.
ADOPT = "UPDATE finished_jobs SET finished_xid = DEFAULT WHERE finished_xid >= pg_snapshot_xmax(pg_current_snapshot())"
_NEXT_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


class Day(NamedTuple):
    """Day, and the table of its rows: a partition or `OTHER`."""

    partition: str
    date: date


class Checksum(NamedTuple):
    """Count and order-independent checksum."""

    rows: int
    value: int


class Dropped(NamedTuple):
    """Dropped day and number of jobs, estimated if large."""

    date: date
    jobs: int


def try_to_archive(connection: Connection) -> bool:
    """Take the session lock; False if held elsewhere."""
    return locks.lock_for_command(connection, locks.ARCHIVE)


def may_be_late(connection: Connection) -> bool:
    """Return False if all rows are in their days' partitions; needs no right on these."""
    (found,) = fetch_one(connection, _MAY_BE_LATE)
    return bool(found)


def make_days(connection: Connection, ahead: int) -> int:
    """Create missing partitions up to `ahead` days; return how many."""
    (made,) = fetch_one(connection, _MAKE_DAYS, (ahead,))
    return int(made)


def days(connection: Connection) -> list[Day]:
    """List days with a partition, oldest first."""
    return [Day._make(row) for row in connection.execute(_DAYS)]


def today(connection: Connection) -> date:
    """Return the database's UTC date."""
    found: date
    (found,) = fetch_one(connection, _TODAY)
    return found


def closed_days(connection: Connection, keep: int = 0) -> list[Day]:
    """List past days but the last `keep`, oldest first, including `OTHER`."""
    end = today(connection) - timedelta(days=keep)
    closed = [day for day in days(connection) if day.date < end]
    closed += [Day(OTHER, late) for (late,) in connection.execute(_LATE_DAYS, (end,))]
    return sorted(closed, key=lambda day: day.date)


def checksum(connection: Connection, day: Day) -> Checksum:
    """Compute a day's checksum in the open snapshot."""
    if day.partition == OTHER:
        return Checksum._make(fetch_one(connection, _CHECKSUM_OF_LATE, (day.date,)))
    return Checksum._make(fetch_one(connection, _CHECKSUM, (day.partition,)))


def size(connection: Connection, day: Day) -> int:
    """Return the table's bytes."""
    (found,) = fetch_one(connection, _SIZE, (day.partition,))
    return int(found)


def measure(connection: Connection, table: str, where: str) -> tuple[int, int]:
    """Return the rows of a table about a day's jobs, and their bytes, in the open snapshot."""
    statement = _RELATED.format(table=table, where=where)
    rows, size = connection.execute(statement.encode()).fetchall()[0]
    return int(rows), int(size)


def remove_day(connection: Connection, day: Day, expected: Checksum) -> bool:
    """Drop a day, or its rows in `OTHER`; False if they differ from `expected`.

    Call in autocommit mode, at read committed.

    Raises:
        psycopg.errors.LockNotAvailable: The partition is in use.
    """
    if day.partition == OTHER:
        return _delete_late(connection, day.date, expected)
    (dropped,) = fetch_one(connection, _DROP_DAY, (day.partition, *expected))
    return bool(dropped)


def drop_old_day(connection: Connection, keep: int) -> Dropped | None:
    """Drop, unarchived, the oldest day before the last `keep`; None if there is none or the archive lock is taken.

    Call in autocommit mode, at read committed; `keep` is at least 1: today and yesterday stay. Rows in `OTHER` are
    deleted by thousands.

    Raises:
        psycopg.errors.LockNotAvailable: The table is in use.
    """
    day, jobs = fetch_one(connection, _DROP_OLD_DAY, (keep,))
    return None if day is None else Dropped(day, int(jobs))


def why_kept(error: errors.LockNotAvailable) -> str:
    """Explain why a day was not dropped."""
    # Only the schema's own errors have a hint.
    own = error.diag.message_hint and error.diag.message_primary
    return own or "finished_jobs is in use by another transaction"


def count_jobs(connection: Connection, day: Day) -> int:
    """Count a day's jobs; above 64 MB, estimate."""
    begin = datetime(day.date.year, day.date.month, day.date.day, tzinfo=UTC)
    # `OTHER` holds many days: its size is not a day's.
    partition = None if day.partition == OTHER else day.partition
    given = {"partition": partition, "begin": begin, "end": begin + timedelta(days=1)}
    (jobs,) = fetch_one(connection, _JOBS_OF_DAY, given)
    return int(jobs)


def dropped_up_to(connection: Connection) -> tuple[date | None, int]:
    """Return the day before which days were dropped unarchived, or None, and their highest id."""
    before, up_to = fetch_one(connection, _DROPPED)
    return before, int(up_to or 0)


def next_transaction(connection: Connection) -> int:
    """Return a new snapshot's xmax, a lower bound of unseen `finished_xid`, open transactions aside."""
    (number,) = fetch_one(connection, _NEXT_TRANSACTION)
    return int(number)


def visible_transactions(connection: Connection) -> tuple[datetime, int, list[int]]:
    """Return this repeatable-read snapshot's time, xmax and open transactions."""
    seconds, xmax, unseen = fetch_one(connection, _SEEN)
    return datetime.fromtimestamp(seconds, UTC), int(xmax), list(unseen)


def clock(connection: Connection) -> float:
    """Return the database's clock, in Unix seconds."""
    (seconds,) = fetch_one(connection, _CLOCK)
    return float(seconds)


def _delete_late(connection: Connection, day: date, expected: Checksum) -> bool:
    with connection.transaction() as transaction:
        connection.execute(_SPELLING)
        deleted = Checksum._make(fetch_one(connection, _DELETE_LATE, {"day": day}))
        if deleted != expected:
            raise Rollback(transaction)
    return deleted == expected
