"""One instant of the database for many connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from psycopg import IsolationLevel
from psycopg.sql import SQL, Identifier, Literal

from drain.database import postgres
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.pipeline.datasources import adbc

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection as ArrowConnection

# In pg_stat_activity, where the holder counts its snapshot's readers.
READER = "drain spark {}"

_EXPORT = "SELECT pg_export_snapshot()"


@contextmanager
def exported(connection: Connection, tables: Sequence[str]) -> Iterator[str]:
    """Export a snapshot of tables for the block, on an autocommit connection that sees it too; yield its name.

    A truncated or dropped partition is gone for older snapshots too, so locks keep all partitions until the block ends.
    Readers and writers never wait for these locks.
    """
    with postgres.transaction(connection, IsolationLevel.REPEATABLE_READ):
        for table in tables:
            connection.execute(SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(Identifier(table)))
        (name,) = postgres.fetch_one(connection, _EXPORT)
        yield str(name)


@contextmanager
def joined(database_url: str, name: str) -> Iterator[ArrowConnection]:
    """Connect for reading as of the snapshot; UnavailableError if it has ended."""
    import adbc_driver_manager

    with adbc.connect(database_url, READER.format(name)) as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            cursor.execute(f"SET TRANSACTION SNAPSHOT {Literal(name).as_string()}")
        except adbc_driver_manager.Error:
            raise UnavailableError(
                f"the snapshot {name} has ended: read the table again, cache() rows that are needed twice, or keep "
                "unused snapshots longer by the option snapshot_seconds"
            ) from None
        # The planner then uses the bounds of partitions read by their own names.
        cursor.execute("SET LOCAL constraint_exclusion = on")
        cursor.execute("SET LOCAL jit = off")
        yield connection


def hold(database_url: str, table: str, unused_seconds: float) -> str:
    """Start a process that holds a table's snapshot for later readers; return its name.

    Spark plans a read in one short-lived process, executes it in others, and does not report its end. So the holder
    ends once it has seen no reader's connection for `unused_seconds`, or Spark has ended.
    """
    order = {
        "database_url": database_url,
        "table": table,
        "unused_seconds": unused_seconds,
        "spark": os.getppid(),
    }
    holder = subprocess.Popen(
        [sys.executable, "-m", "drain.pipeline.datasources.snapshot_holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # It outlives the process that plans the read.
        start_new_session=True,
    )
    # Other users could read a password in an argument.
    with cast("IO[str]", holder.stdin) as orders, cast("IO[str]", holder.stdout) as answers:
        orders.write(json.dumps(order) + "\n")
        orders.flush()
        answer = json.loads(answers.readline() or '{"error": "the snapshot could not be taken"}')
    if "error" in answer:
        raise UnavailableError(answer["error"])
    return str(answer["snapshot"])
