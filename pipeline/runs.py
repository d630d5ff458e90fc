"""Runs that stage jobs: each has a name, is executed by one process at a time, and stages once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf

from psycopg import Error, errors

from drain.database import pooler, postgres, schema
from drain.database.postgres import Connection
from drain.errors import ConfigError, DrainError, StageError
from drain.jobs import values
from drain.tables import bulk, inserts


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits above which a run pauses.

    Attributes:
        lag_seconds: Lag of the slowest replica.
        wal_bytes: WAL that replication slots keep.
        delay_factor: 99th percentile of the time from staging to Redis of jobs with a lower priority number, as a
            multiple of that before the run.
    """

    lag_seconds: float = 10.0
    wal_bytes: float = 1024**3
    delay_factor: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run that stages jobs.

    Attributes:
        run_id: Identifier of the run. A run that has been staged stages nothing more.
        rows_per_second: Number of jobs that come due in each second; None: all at once.
        commit_every: Number of rows after which to commit; None: all in one commit.
        limits: When to pause between two commits.
        priority: Priority of the jobs; those with a lower number must not be delayed.
        plan: Description of the jobs. A run that has staged another plan is refused; None: any plan is accepted.
    """

    run_id: str
    rows_per_second: float | None = None
    commit_every: int | None = None
    limits: Limits = field(default_factory=Limits)
    priority: int = 1
    plan: str | None = None

    def __post_init__(self) -> None:
        # Not `<= 0`, which is false for NaN.
        if self.rows_per_second is not None and not 0 < self.rows_per_second < inf:
            raise ConfigError(f"rows_per_second must be a number above 0, not {self.rows_per_second!r}")
        if self.commit_every is not None and self.commit_every < 1:
            raise ConfigError(f"commit_every must be above 0, not {self.commit_every!r}")


def new_run_id(command: str) -> str:
    """Make a name for a run, different each time."""
    return f"{command}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


@contextmanager
def exclusive(database_url: str, run_id: str) -> Iterator[Connection]:
    """Connect, and hold the lock of the run while the block runs.

    Raises:
        DrainError: Another process executes this run, or a pooler shares sessions.
        SchemaError: job-drain's schema is missing in the database, or has another version.
        UnavailableError: The database cannot be reached, or the connection is lost.
    """
    connection = postgres.connect(database_url, "drain bulk")
    with connection, postgres.reachable(database_url):
        pooler.require_own_session(connection, database_url)
        schema.check(connection)
        if not bulk.try_to_run(connection, run_id):
            raise DrainError(f"run {run_id} is under way in another process")
        yield connection


@contextmanager
def begun(connection: Connection, run: Run) -> Iterator[None]:
    """Note that a run is under way while the block runs; afterwards the note stays if it has staged jobs.

    Args:
        connection: In autocommit mode; it holds the lock of the run.
        run: The run.
    """
    bulk.begin(connection, run.run_id, run.plan)
    try:
        yield
    finally:
        # The connection may be lost.
        with suppress(Error):
            bulk.forget(connection, run.run_id)


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
