"""One instant of the database for many connections: an exported snapshot, and the process that holds it open."""

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
from pipeline.datasources import adbc

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection as ArrowConnection

# Readers are known to the keeper by this name.
READER = "drain spark {}"

_EXPORT = "SELECT pg_export_snapshot()"


@contextmanager
def exported(connection: Connection, tables: Sequence[str]) -> Iterator[str]:
    """Export a snapshot of these tables and hold it open while the block runs; yields the snapshot's name.

    A partition that is truncated or dropped as a whole is gone for every snapshot, older ones too, so the tables are
    locked before the snapshot is taken: until the block ends no partition of theirs is dropped. Nobody else waits.

    Args:
        connection: In autocommit mode. The block may ask it for what this very instant shows.
        tables: Names of tables of ours.
    """
    with postgres.transaction(connection, IsolationLevel.REPEATABLE_READ):
        for table in tables:
            connection.execute(SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(Identifier(table)))
        (name,) = postgres.fetch_one(connection, _EXPORT)
        yield str(name)


@contextmanager
def joined(database_url: str, name: str) -> Iterator[ArrowConnection]:
    """Connect, for reading, to the instant that a snapshot shows.

    Raises:
        UnavailableError: The snapshot has ended, or the server is away.
    """
    import adbc_driver_manager

    with adbc.connect(database_url, READER.format(name)) as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            cursor.execute(f"SET TRANSACTION SNAPSHOT {Literal(name).as_string()}")
        except adbc_driver_manager.Error:
            raise UnavailableError(
                f"the snapshot {name} has ended: read the table anew, cache() what you need twice, or let an "
                "unused one be kept for longer with the option snapshot_seconds"
            ) from None
        # A partition is read by its own name, and its bounds are to be known all the same.
        cursor.execute("SET LOCAL constraint_exclusion = on")
        cursor.execute("SET LOCAL jit = off")
        yield connection


def keep(database_url: str, table: str, unused_seconds: float) -> str:
    """Start a process that holds a snapshot of a table open, for readers that start later.

    Spark plans a read in one short-lived process and executes it in others, and tells nobody when it has ended. So
    the keeper looks for its readers' connections, and ends when it has seen none for a while, or when Spark is gone.

    Args:
        database_url: Of the database.
        table: To be read.
        unused_seconds: How long to wait for the next reader.

    Returns:
        The snapshot's name.

    Raises:
        UnavailableError: The database cannot be reached.
    """
    order = {
        "database_url": database_url,
        "table": table,
        "unused_seconds": unused_seconds,
        "spark": os.getppid(),
    }
    keeper = subprocess.Popen(
        [sys.executable, "-m", "pipeline.datasources.snapshot_holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # The planner's end is not the keeper's.
        start_new_session=True,
    )
    # Not as an argument: others on this machine could read the password.
    with cast("IO[str]", keeper.stdin) as orders, cast("IO[str]", keeper.stdout) as answers:
        orders.write(json.dumps(order) + "\n")
        orders.flush()
        answer = json.loads(answers.readline() or '{"error": "the snapshot could not be taken"}')
    if "error" in answer:
        raise UnavailableError(answer["error"])
    return str(answer["snapshot"])
