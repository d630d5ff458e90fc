"""Connection of a command to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import click
import psycopg

from drain.config import Settings
from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.formatting import visible
from drain.read import queries

# Counting a few million rows takes a second.
_STATEMENT_SECONDS = 30
_LOCK_SECONDS = 5


@contextmanager
def database(settings: Settings, seconds: int = _STATEMENT_SECONDS) -> Iterator[Connection]:
    """Connect to a database with our schema.

    Args:
        seconds: Timeout of a statement; twice that for the block.

    Raises:
        DrainError: The database or its schema is unusable, or time is up.
    """
    connection = postgres.connect(settings.database_url, "drain cli")
    with (
        closing(connection),
        postgres.reachable(settings.database_url),
        postgres.time_limit(connection, 2 * seconds),
    ):
        postgres.limit_session(connection, statement_seconds=seconds, lock_seconds=_LOCK_SECONDS)
        schema.check(connection)
        try:
            yield queries.with_lenient_values(connection)
        except psycopg.errors.LockNotAvailable:
            raise UnavailableError(
                f"another transaction has held a lock for {_LOCK_SECONDS} s; try again when it has ended"
            ) from None


def hint_at_unknown(queues: Sequence[str], known: set[str]) -> None:
    """Print a line for each unknown queue."""
    for queue in queues:
        if queue not in known:
            names = visible(", ".join(sorted(known))) or "none"
            advice = "; separate queues with spaces" if "," in queue else ""
            click.echo(
                f"queue {queue!r} is unknown (idle, or misspelt?): it has no job staged, in flight or dead; "
                f"known: {names}{advice}",
                err=True,
            )
