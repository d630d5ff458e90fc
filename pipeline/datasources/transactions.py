"""Finished jobs in the order of their transactions, so that no row can appear behind a position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from drain.database.postgres import Connection, fetch_one
from drain.errors import DrainError
from drain.pipeline.datasources import adbc, columns
from drain.tables import finished

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_manager.dbapi import Connection as ArrowConnection

# Rows after the start that no invisible row can precede: every transaction that is not visible yet has a number from
# pg_snapshot_xmin() on. (PostgreSQL 14 has no max(xid8).)
_SEEN = """
finished_jobs WHERE finished_xid > %(start)s::text::xid8 AND finished_xid < pg_snapshot_xmin(pg_current_snapshot())
"""
# True if transaction numbers of rows or of the start are beyond those of this server: the database was restored from a
# dump of another server, or the checkpoint is from before that.
_IS_OF_ANOTHER_SERVER = """
SELECT greatest((SELECT finished_xid FROM finished_jobs ORDER BY finished_xid DESC LIMIT 1), %(start)s::text::xid8)
    >= pg_snapshot_xmax(pg_current_snapshot())
"""
_OF_ANOTHER_SERVER = (
    "finished_jobs, or the checkpoint, has transaction numbers that this server has not reached yet: the database has "
    f"moved here from another server. Execute {finished.ADOPT}, and begin with a new checkpoint"
)
_LATEST = f"SELECT finished_xid::text::bigint FROM {_SEEN} ORDER BY finished_xid DESC LIMIT 1"
# Last transaction within the limit of rows; if the first alone exceeds the limit, the first.
_LATEST_THAT_FITS = f"""
WITH too_far AS (
    SELECT finished_xid AS xid FROM {_SEEN} ORDER BY finished_xid OFFSET %(rows)s LIMIT 1
)
SELECT coalesce((
        SELECT finished_xid FROM {_SEEN} AND finished_xid < xid ORDER BY finished_xid DESC LIMIT 1), xid)::text::bigint
FROM too_far
"""


def latest(connection: Connection, start: int, most: int | None) -> int:
    """Find the last transaction of the next batch; returns the start again if there is nothing new.

    A transaction that stays open for an hour delays what follows it by an hour.

    Args:
        connection: In autocommit mode.
        start: Last transaction that has been read.
        most: Upper bound of the rows of a batch, unless its first transaction has more; None: no bound.

    Raises:
        DrainError: The rows, or the start, have transaction numbers of another server, beyond those of this one.
    """
    parameters = {"start": start, "rows": most}
    (of_another,) = fetch_one(connection, _IS_OF_ANOTHER_SERVER, parameters)
    if of_another:
        raise DrainError(_OF_ANOTHER_SERVER)
    found = None if most is None else connection.execute(_LATEST_THAT_FITS, parameters).fetchone()
    # Fewer rows than the limit are left.
    found = found or connection.execute(_LATEST, parameters).fetchone()
    return int(found[0]) if found else start


def read(connection: ArrowConnection, start: int, end: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read these columns of the rows of the transactions after `start`, up to `end`."""
    schema = columns.arrow_schema({name: columns.TABLES["finished_jobs"][name] for name in names})
    statement = (
        f"SELECT {columns.select_list('finished_jobs', names)} FROM finished_jobs "
        f"WHERE finished_xid > '{int(start)}'::xid8 AND finished_xid <= '{int(end)}'::xid8"
    )
    yield from adbc.batches(connection, statement, schema)
