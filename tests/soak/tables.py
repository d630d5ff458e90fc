"""What the applications ask for, and what the jobs leave behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drain.database.postgres import Connection

# `wanted` is written in the transaction that stages the job. Jobs write into `effects` in the transaction that
# finishes them, and into `sent` in one of its own, as they would do something outside of PostgreSQL.
_CREATE = """
CREATE TABLE wanted (job_id bigint PRIMARY KEY, kind text NOT NULL);
CREATE TABLE effects (job_id bigint NOT NULL, fencing_token bigint NOT NULL);
CREATE TABLE sent (job_id bigint NOT NULL, fencing_token bigint NOT NULL);
"""
WANT = "INSERT INTO wanted (job_id, kind) VALUES (%s, %s)"
# One tick, and the next one on New Year's Day.
SCHEDULE = """
INSERT INTO crons (name, job_name, cron, options, missed, next_tick_at)
VALUES (%s, 'soak.settle', '0 0 1 1 *', '{"queue": "bulk"}', 'all', now() + make_interval(secs => %s))
"""

_COUNTS = """
SELECT (SELECT count(*) FROM wanted), (SELECT count(*) FROM staged_jobs)
    + (SELECT count(*) FROM crons WHERE last_job_id IS NULL), (SELECT count(*) FROM inflight_jobs),
    (SELECT count(*) FROM finished_jobs), (SELECT count(*) FROM dead_jobs)
"""


def create(connection: Connection) -> None:
    """Create the tables."""
    connection.execute(_CREATE)


def counts(connection: Connection) -> dict[str, int]:
    """How many jobs were asked for, and where they are."""
    (row,) = connection.execute(_COUNTS).fetchall()
    return dict(zip(("wanted", "staged", "inflight", "finished", "dead"), row, strict=True))


def value(connection: Connection, statement: str) -> int:
    """The number that a statement answers with."""
    ((number,),) = connection.execute(statement.encode()).fetchall()
    return int(number)


def ids(connection: Connection, statement: str, parameters: Mapping[str, Any]) -> Sequence[int]:
    """The ids that a statement answers with, sorted."""
    return sorted(id_ for (id_,) in connection.execute(statement.encode(), parameters))
