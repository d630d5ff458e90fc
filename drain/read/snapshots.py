"""Snapshots: transactions in which all tables are read as of one instant, by indexes alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drain.database.postgres import Connection


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """Open a transaction with one snapshot of all tables, in which each plan reads the heads of indexes.

    Whatever the statistics say: without bitmaps, the last rows of an index are not all of them, sorted.
    """
    with connection.transaction():
        # The lock comes before the snapshot: a partition that is truncated later would be empty for this snapshot too.
        connection.execute(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL jit = off; "
            "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
            "LOCK TABLE staged_jobs IN ACCESS SHARE MODE"
        )
        yield
