"""Runs that stage jobs: each has a name, is executed by one process at a time, and stages once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from psycopg import errors

from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.errors import DrainError, StageError
from drain.jobs import values
from drain.tables import bulk, inserts


def new_run_id(command: str) -> str:
    """Make a name for a run, different each time."""
    return f"{command}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


@contextmanager
def exclusive(database_url: str, run_id: str) -> Iterator[Connection]:
    """Connect, and hold the lock of the run while the block runs.

    Raises:
        DrainError: Another process executes this run.
        SchemaError: job-drain's schema is missing in the database, or has another version.
        UnavailableError: The database cannot be reached, or the connection is lost.
    """
    connection = postgres.connect(database_url, "drain bulk")
    with connection, postgres.reachable(database_url):
        schema.check(connection)
        if not bulk.try_to_run(connection, run_id):
            raise DrainError(f"run {run_id} is under way in another process")
        yield connection


def check_stageable(
    connection: Connection, job_names: Iterable[str], *, queue: str, priority: int, tag: str | None
) -> None:
    """Check that such jobs can be staged, before Spark starts: one job of each name is staged and rolled back.

    Raises:
        StageError: Such jobs break a rule of the schema.
    """
    try:
        with connection.transaction(force_rollback=True):
            for name in job_names:
                row = {
                    "job_name": values.as_text("job", name),
                    "queue": values.as_queue(queue),
                    "priority": priority,
                    "tag": values.as_text("tag", tag),
                }
                connection.execute(inserts.insert_one(tuple(row)).encode(), row)
    except errors.IntegrityError as error:
        raise StageError(f"such jobs break the rule {bulk.broken_rule(error)!r}") from None
