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
from drain.jobs.staging import stage
from drain.tables import bulk


def new_run_id(command: str) -> str:
    """Make a name for a run, different each time."""
    return f"{command}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


@contextmanager
def alone(database_url: str, run_id: str) -> Iterator[Connection]:
    """Connect, and hold the lock of the run while the block runs.

    Raises:
        DrainError: Another process holds it.
        SchemaError: The database has no schema of ours, or one of another version.
        UnavailableError: The database cannot be reached, or is lost.
    """
    connection = postgres.connect(database_url, "drain bulk")
    with connection, postgres.reachable(database_url):
        schema.check(connection)
        if not bulk.try_to_run(connection, run_id):
            raise DrainError(f"run {run_id} is under way in another process")
        yield connection


def try_one(
    connection: Connection, job_names: Iterable[str], *, queue: str, priority: int, tag: str | None
) -> None:
    """Stage one job of each name and roll back, so that options no job could have are refused before Spark starts.

    Raises:
        StageError: Such jobs break a rule.
    """
    try:
        with connection.transaction(force_rollback=True):
            for name in job_names:
                stage(connection, name, queue=queue, priority=priority, tag=tag)
    except errors.IntegrityError as error:
        raise StageError(f"such jobs break the rule {bulk.broken_rule(error)!r}") from None
