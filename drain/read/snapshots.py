"""Read-only snapshots of all tables, read through indexes alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drain.database.postgres import Connection


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """Open a snapshot whose plans read heads of indexes.

    Bitmap scans are off too: with bad statistics they would read a whole index.
    """
    with connection.transaction():
        # Lock first: a partition truncated later would be empty in the snapshot too.
        connection.execute(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL jit = off; "
            "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
            "LOCK TABLE staged_jobs IN ACCESS SHARE MODE"
        )
        yield
