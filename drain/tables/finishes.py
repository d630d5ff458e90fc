"""Finishes: claimed jobs move to `finished_jobs`, one or many, or in the job's own transaction.

A finish changes no other job: the leader finds it by `finished_xid`, and unblocks the jobs that wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.errors import DivisionByZero

from drain.database.cursor import execute_and_commit
from drain.database.postgres import AnyConnection, Connection, fetch_one, home_of
from drain.database.qualified import within
from drain.tables.columns import FINISHED, FINISHED_VALUES, id_array
from drain.tables.fences import (
    FINISHED_BY_THESE_CLAIMS,
    FINISHED_BY_THIS_CLAIM,
    THESE_CLAIMS,
    Fenced,
    of_many,
    of_one,
)
from drain.tables.leases import is_current

_CALL = "drain_finish(%s::bigint, %s::bigint, %s::bigint, %s::text, %s::jsonb)"
_WITHOUT_WAIT = "set_config('synchronous_commit', 'off', true)"
FINISH_ONCE = f"SELECT {_CALL}"
FINISH_WITHOUT_WAIT = f"SELECT {_WITHOUT_WAIT}, {_CALL}"
# On failure nothing is committed, so COMMIT is pipelined: two round trips, not three.
FINISH_OR_FAIL = f"SELECT 1 / {_CALL}::integer"
FINISH_OR_FAIL_WITHOUT_WAIT = f"SELECT {_WITHOUT_WAIT}, 1 / {_CALL}::integer"
_RECORDED = f"""
WITH done AS (
    DELETE FROM inflight_jobs WHERE {THESE_CLAIMS} RETURNING *
), recorded AS (
    INSERT INTO finished_jobs ({FINISHED}) SELECT {FINISHED_VALUES} FROM done RETURNING id
)"""
# {"id": result}. Separate, so that jobs without a result pay nothing.
_RECORDED_WITH_RESULTS = f"""
WITH done AS (
    DELETE FROM inflight_jobs WHERE {THESE_CLAIMS} RETURNING *
), recorded AS (
    INSERT INTO finished_jobs ({FINISHED}, result)
    SELECT {FINISHED_VALUES}, %(results)s::jsonb -> id::text FROM done RETURNING id
)"""
FINISH_MANY = f"{_RECORDED}\nSELECT id FROM recorded\n"
FINISH_MANY_WITH_RESULTS = f"{_RECORDED_WITH_RESULTS}\nSELECT id FROM recorded\n"
_UNLESS_ALL = "SELECT 1 / (count(*) = %(count)s::bigint)::integer FROM recorded"
FINISH_ALL_OR_FAIL = f"{_RECORDED}\n{_UNLESS_ALL}\n"
FINISH_ALL_OR_FAIL_WITH_RESULTS = f"{_RECORDED_WITH_RESULTS}\n{_UNLESS_ALL}\n"
# Makes earlier commits durable: WAL is sequential, and the message makes this transaction wait for the disk. With the
# xid first, a replica reports that it is read-only, not an internal error.
_FLUSH = """
set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true),
    pg_current_xact_id(), pg_logical_emit_message(true, 'drain', '')"""
LASTING = f"""
SELECT {_FLUSH}, ARRAY (
    SELECT id FROM finished_jobs WHERE {FINISHED_BY_THESE_CLAIMS} AND finished_at > now() - interval '1 day')
"""
IS_FINISHED = f"""
SELECT {_FLUSH}, EXISTS (
    SELECT FROM finished_jobs WHERE {FINISHED_BY_THIS_CLAIM} AND finished_at > now() - interval '1 day')
"""
ADD_RESULT = f"""
UPDATE finished_jobs SET result = %(result)s::jsonb
WHERE {FINISHED_BY_THIS_CLAIM} AND finished_at > now() - interval '1 day'
"""
ARE_FINISHED = """
SELECT id, true FROM finished_jobs
WHERE id = ANY (%(ids)s::bigint[]) AND finished_at > now() - interval '1 day'
UNION ALL
SELECT id, false FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[])
"""


def finish(connection: Connection, claim: Fenced, result: str | None = None) -> bool:
    """Finish the job, in autocommit mode; False if the claim is stale.

    Repeatable after a lost answer: True also if this claim finished it before.
    """
    # The first statement touches one partition; the second is rarely needed.
    return finish_once(connection, claim, result) or is_finished(connection, claim)


def finish_once(connection: Connection, claim: Fenced, result: str | None = None) -> bool:
    """Finish the job; return True only if this call did."""
    (finished,) = fetch_one(connection, FINISH_ONCE, finish_parameters(claim, result))
    return bool(finished)


def finish_parameters(claim: Fenced, result: str | None) -> tuple[object, ...]:
    """Return the parameters of `drain_finish`."""
    return claim.id, claim.fencing_token, claim.salt, claim.worker, result


def finish_or_fail(connection: AnyConnection, *, waits: bool) -> str:
    """Build a statement that divides by zero if the claim is stale."""
    return within(home_of(connection), FINISH_OR_FAIL if waits else FINISH_OR_FAIL_WITHOUT_WAIT)


def finish_and_commit(
    connection: Connection, claim: Fenced, *, waits: bool = True, result: str | None = None
) -> bool:
    """Commit the finish and the open transaction, or neither.

    Args:
        connection: In the transaction; with any search_path if from `postgres.connect`.
        waits: Wait for the disk, as the session says. Otherwise a server crash may undo the commit until
            `undone_by_crash` is called.

    Returns:
        False if the claim is stale or used up.

    Raises:
        psycopg.Error: Everything is rolled back; after an OperationalError, the commit is in doubt.
    """
    return commit_under_fence(
        connection, claim, finish_or_fail(connection, waits=waits), finish_parameters(claim, result)
    )


def commit_under_fence(
    connection: Connection, claim: Fenced, statement: str, parameters: Sequence[object]
) -> bool:
    """Execute a statement that divides by zero if the claim is stale, and commit; see `finish_and_commit`."""
    try:
        execute_and_commit(connection, statement, parameters)
    except DivisionByZero:
        connection.rollback()
        # With a current claim, a trigger divided by zero.
        if is_current(connection, claim):
            raise
        return False
    return True


def add_result(connection: Connection, claim: Fenced, result: str) -> bool:
    """Add a result to this claim's recent finish; False without one."""
    return connection.execute(ADD_RESULT, {**of_one(claim), "result": result}).rowcount > 0


def finish_many(
    connection: Connection, claims: Sequence[Fenced], results: Mapping[int, str] | None = None
) -> set[int]:
    """Finish jobs with current claims of one process, in autocommit mode.

    Returns:
        Ids finished by this call; ask `finish` about the others.

    Raises:
        psycopg.IntegrityError: An id was finished before; nothing is recorded.
    """
    given = of_many(claims)
    if not results:
        rows = connection.execute(FINISH_MANY, given, binary=True)
    else:
        rows = connection.execute(
            FINISH_MANY_WITH_RESULTS, {**given, "results": _object(results)}, binary=True
        )
    return {job_id for (job_id,) in rows}


def finish_all_and_commit(
    connection: Connection, claims: Sequence[Fenced], results: Mapping[int, str]
) -> None:
    """Commit the finishes of jobs of one process and the open transaction, or nothing.

    Raises:
        psycopg.Error: Everything is rolled back, as after DivisionByZero, which means that a claim is stale; unless the
            connection is lost, and the commit in doubt.
    """
    statement = FINISH_ALL_OR_FAIL_WITH_RESULTS if results else FINISH_ALL_OR_FAIL
    given: dict[str, Any] = {**of_many(claims), "count": len(claims)}
    if results:
        given["results"] = _object(results)
    execute_and_commit(connection, within(home_of(connection), statement), given)


def _object(results: Mapping[int, str]) -> str:
    members = ",".join(f'"{job_id}":{result}' for job_id, result in results.items())
    return f"{{{members}}}"


def undone_by_crash(connection: Connection, claims: Sequence[Fenced]) -> set[int]:
    """Make commits of the last day durable; return the ids whose finish a crash undid.

    Those are in flight again, perhaps reclaimed, and their transactions are lost. Call in autocommit mode, with
    claims of one process.
    """
    *_, lasting = fetch_one(connection, LASTING, of_many(claims))
    return {claim.id for claim in claims}.difference(lasting)


def are_finished(connection: Connection, ids: Sequence[int]) -> dict[int, bool]:
    """Return by id True if finished within the last day, False if in flight."""
    return dict(connection.execute(ARE_FINISHED, {"ids": id_array(ids)}).fetchall())


def is_finished(connection: Connection, claim: Fenced) -> bool:
    """Return True, durably, if this claim finished within the last day."""
    *_, finished = fetch_one(connection, within(home_of(connection), IS_FINISHED), of_one(claim))
    return bool(finished)
