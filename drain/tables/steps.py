"""Steps of jobs: their results, which later attempts reuse."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from drain.database.postgres import AnyConnection, Connection, home_of
from drain.database.qualified import within
from drain.tables.fences import Fenced

_CALL = "drain_record_step(%s::bigint, %s::bigint, %s::bigint, %s::text, %s::text, %s::json, %s::double precision)"
RECORD = f"SELECT {_CALL}"
# As `finishes.FINISH_OR_FAIL`: on failure nothing is committed, so COMMIT is pipelined.
RECORD_OR_FAIL = f"SELECT 1 / {_CALL}::integer"
# Waits for a commit of this claim that is under way: behind the lock, a result that is absent stays so.
WAIT = "SELECT FROM inflight_jobs WHERE id = %s FOR UPDATE"
READ = "SELECT name, result::text FROM job_steps WHERE job_id = %s"


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
