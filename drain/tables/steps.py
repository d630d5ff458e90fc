"""Steps of jobs: their results, which later attempts reuse."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from drain.database.postgres import AnyConnection, Connection, fetch_one, home_of
from drain.database.qualified import within
from drain.tables.fences import Fenced

_CALL = "drain_record_step(%s::bigint, %s::bigint, %s::bigint, %s::text, %s::text, %s::json, %s::double precision)"
RECORD = f"SELECT {_CALL}"
# As `finishes.FINISH_OR_FAIL`: on failure nothing is committed, so COMMIT is pipelined.
RECORD_OR_FAIL = f"SELECT 1 / {_CALL}::integer"
# Waits for a commit of this claim that is under way: behind the lock, a result that is absent stays so.
WAIT = "SELECT FROM inflight_jobs WHERE id = %s FOR UPDATE"
READ = "SELECT name, result::text FROM job_steps WHERE job_id = %s"
# Jobs may be in any table, so one snapshot must show them all.
DELETE_GONE = """
WITH looked AS (
    SELECT DISTINCT job_id AS id FROM job_steps WHERE job_id > %(after)s ORDER BY job_id LIMIT %(most)s
), gone AS (
    DELETE FROM job_steps WHERE job_id = ANY (ARRAY (
        SELECT id FROM looked
        WHERE NOT EXISTS (SELECT FROM staged_jobs WHERE staged_jobs.id = looked.id)
            AND NOT EXISTS (SELECT FROM inflight_jobs WHERE inflight_jobs.id = looked.id)
            AND NOT EXISTS (SELECT FROM finished_jobs WHERE finished_jobs.id = looked.id)
            AND NOT EXISTS (SELECT FROM dead_jobs WHERE dead_jobs.id = looked.id)))
    RETURNING job_id
)
SELECT coalesce((SELECT max(id) FROM looked), 0), (SELECT count(*) FROM gone)
"""


class Step(NamedTuple):
    """Step that has run; `result` is JSON."""

    name: str
    result: str
    seconds: float


def read(connection: Connection, claim: Fenced) -> dict[str, str]:
    """Read the results that earlier attempts recorded, as JSON, by name."""
    statement = within(home_of(connection), READ)
    return dict(connection.execute(statement, (claim.id,), prepare=False).fetchall())


def wait(connection: Connection, claim: Fenced) -> None:
    """Let the job's steps under way end, before `read` in the same transaction."""
    connection.execute(within(home_of(connection), WAIT), (claim.id,), prepare=False)


async def wait_async(connection: psycopg.AsyncConnection[Any], claim: Fenced) -> None:
    """See `wait`."""
    await connection.execute(within(home_of(connection), WAIT), (claim.id,), prepare=False)


async def read_async(connection: psycopg.AsyncConnection[Any], claim: Fenced) -> dict[str, str]:
    """See `read`."""
    statement = within(home_of(connection), READ)
    return dict(await (await connection.execute(statement, (claim.id,), prepare=False)).fetchall())


def record_or_fail(connection: AnyConnection) -> str:
    """Build a statement that divides by zero if the claim is stale."""
    return within(home_of(connection), RECORD_OR_FAIL)


def record_parameters(claim: Fenced, step: Step) -> tuple[object, ...]:
    """Return the parameters of `drain_record_step`."""
    return claim.id, claim.fencing_token, claim.salt, claim.worker, *step


def delete_gone(connection: Connection, after: int, most: int) -> tuple[int, int]:
    """Delete the steps of jobs that are in no table.

    Args:
        after: Only of jobs with a higher id.
        most: Jobs to look at.

    Returns:
        The last id looked at, 0 at the end; and how many steps are gone.
    """
    last, gone = fetch_one(connection, DELETE_GONE, {"after": after, "most": most})
    return last, gone
