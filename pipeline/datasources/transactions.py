"""Finished jobs in transaction order: no row appears behind a position."""

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

# No invisible row can precede these: transactions not yet visible have numbers from pg_snapshot_xmin() on. (PostgreSQL
# 14 has no max(xid8).)
_SEEN = """
finished_jobs WHERE finished_xid > %(start)s::text::xid8 AND finished_xid < pg_snapshot_xmin(pg_current_snapshot())
"""
# True if transaction numbers of rows or start exceed this server's: after restoring another server's dump, or with a
# checkpoint from before.
_IS_OF_ANOTHER_SERVER = """
SELECT greatest((SELECT finished_xid FROM finished_jobs ORDER BY finished_xid DESC LIMIT 1), %(start)s::text::xid8)
    >= pg_snapshot_xmax(pg_current_snapshot())
"""
_OF_ANOTHER_SERVER = (
    "finished_jobs, or the checkpoint, has transaction numbers that this server has not reached yet: the database has "
    f"moved here from another server. Execute {finished.ADOPT}, and begin with a new checkpoint"
)
_LATEST = f"SELECT finished_xid::text::bigint FROM {_SEEN} ORDER BY finished_xid DESC LIMIT 1"
# Within the limit, or the first transaction alone.
_LATEST_THAT_FITS = f"""
WITH too_far AS (
    SELECT finished_xid AS xid FROM {_SEEN} ORDER BY finished_xid OFFSET %(rows)s LIMIT 1
)
SELECT coalesce((
        SELECT finished_xid FROM {_SEEN} AND finished_xid < xid ORDER BY finished_xid DESC LIMIT 1), xid)::text::bigint
FROM too_far
"""


def latest(connection: Connection, start: int, most: int | None) -> int:
    """Find the next batch's last transaction, or return `start`. An open transaction delays later ones.

    Args:
        connection: In autocommit mode.
        most: Rows, unless the first transaction has more.

    Raises:
        DrainError: Transaction numbers are another server's, beyond this one's.
    """
    parameters = {"start": start, "rows": most}
    (of_another,) = fetch_one(connection, _IS_OF_ANOTHER_SERVER, parameters)
    if of_another:
        raise DrainError(_OF_ANOTHER_SERVER)
    found = None if most is None else connection.execute(_LATEST_THAT_FITS, parameters).fetchone()
    found = found or connection.execute(_LATEST, parameters).fetchone()
    return int(found[0]) if found else start


def read(connection: ArrowConnection, start: int, end: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read rows of the transactions after `start`, up to `end`."""
    schema = columns.arrow_schema({name: columns.TABLES["finished_jobs"][name] for name in names})
    statement = (
        f"SELECT {columns.select_list('finished_jobs', names)} FROM finished_jobs "
        f"WHERE finished_xid > '{int(start)}'::xid8 AND finished_xid <= '{int(end)}'::xid8"
    )
    yield from adbc.batches(connection, statement, schema)
