"""Runs that stage jobs once, in one process at a time."""

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
from drain.tables import bulk, bulk_flows, inserts
from drain.tables.bulk_flows import NewFlow


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits above which a run pauses.

    Attributes:
        lag_seconds: Of the slowest replica.
        wal_bytes: Kept by replication slots.
        delay_factor: Growth of the 99th percentile from staging to Redis of more urgent jobs.
    """

    lag_seconds: float = 10.0
    wal_bytes: float = 1024**3
    delay_factor: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run that stages jobs.

    Attributes:
        run_id: A staged run stages nothing more.
        rows_per_second: None for all at once.
        commit_every: Rows; None for one commit.
        priority: More urgent jobs, with lower numbers, must not be delayed.
        plan: Describes the jobs; a staged run refuses another plan.
        flow: Its jobs become members of this flow, in one commit.
    """

    run_id: str
    rows_per_second: float | None = None
    commit_every: int | None = None
    limits: Limits = field(default_factory=Limits)
    priority: int = 1
    plan: str | None = None
    flow: NewFlow | None = None

    def __post_init__(self) -> None:
        # `<= 0` is false for NaN.
        if self.rows_per_second is not None and not 0 < self.rows_per_second < inf:
            raise ConfigError(f"rows_per_second must be a number above 0, not {self.rows_per_second!r}")
        if self.commit_every is not None and self.commit_every < 1:
            raise ConfigError(f"commit_every must be above 0, not {self.commit_every!r}")
        if self.flow is not None and self.commit_every is not None:
            raise ConfigError("a flow is staged in one commit: leave out commit_every")


def new_run_id(command: str) -> str:
    """Create a unique run name."""
    return f"{command}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


@contextmanager
def exclusive(database_url: str, run_id: str) -> Iterator[Connection]:
    """Hold the run's lock; DrainError if another process does, or a pooler shares sessions."""
    connection = postgres.connect(database_url, "drain bulk")
    with connection, postgres.reachable(database_url):
        pooler.require_own_session(connection, database_url)
        schema.check(connection)
        if not bulk.try_to_run(connection, run_id):
            raise DrainError(f"run {run_id} is under way in another process")
        yield connection


@contextmanager
def begun(connection: Connection, run: Run) -> Iterator[None]:
    """Note a run, with its lock held in autocommit mode; the note stays if it stages jobs."""
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
    """Check that such jobs can be staged, by staging and rolling back one of each name."""
    with _rolled_back(connection, "such jobs break"):
        for name in job_names:
            row = {
                "job_name": values.as_text("job", name),
                "queue": values.as_queue(queue),
                "priority": priority,
                "tag": values.as_text("tag", tag),
            }
            connection.execute(inserts.insert_one(tuple(row)).encode(), row)


def check_flow(connection: Connection, flow: NewFlow) -> None:
    """Check that a flow and its callbacks can be staged, by staging and rolling them back."""
    with _rolled_back(connection, "the flow or a callback breaks"):
        bulk_flows.make(connection, flow)


@contextmanager
def _rolled_back(connection: Connection, breaks: str) -> Iterator[None]:
    try:
        with connection.transaction(force_rollback=True):
            yield
    except errors.IntegrityError as error:
        raise StageError(f"{breaks} the rule {bulk.broken_rule(error)!r}") from None
