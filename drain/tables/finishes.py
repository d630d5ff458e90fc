"""Finishes of claims: the job leaves `inflight_jobs` for `finished_jobs`, if the claim is current.

A worker finishes jobs by themselves, alone or many in one statement; or in the transaction of the job, whose commit
either waits for the disk, or is made durable later, together with many others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
# The server commits nothing behind a statement that fails, so the commit is sent before the answer comes: a job of one
# statement has two exchanges with the server instead of three.
FINISH_OR_FAIL = f"SELECT 1 / {_CALL}::integer"
FINISH_OR_FAIL_WITHOUT_WAIT = f"SELECT {_WITHOUT_WAIT}, 1 / {_CALL}::integer"
FINISH_MANY = f"""
WITH done AS (
    DELETE FROM inflight_jobs WHERE {THESE_CLAIMS} RETURNING *
), recorded AS (
    INSERT INTO finished_jobs ({FINISHED}) SELECT {FINISHED_VALUES} FROM done RETURNING id
)
SELECT id FROM recorded
"""
# The results of those that keep one are an object, {"id": result}. A statement of its own: jobs without a result pay
# for none.
FINISH_MANY_WITH_RESULTS = f"""
WITH done AS (
    DELETE FROM inflight_jobs WHERE {THESE_CLAIMS} RETURNING *
), recorded AS (
    INSERT INTO finished_jobs ({FINISHED}, result)
    SELECT {FINISHED_VALUES}, %(results)s::jsonb -> id::text FROM done RETURNING id
)
SELECT id FROM recorded
"""
# Columns that make all durable that this session, or another one, has committed before: the log is written in order,
# and the message gives this transaction something to write, without which it would not wait for the disk. The id is
# asked for since a replica then says that it accepts no writes; the message would be an internal error there.
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
    """Record the job as finished, if the claim is still the current one.

    Args:
        connection: In autocommit mode.
        claim: The claim.
        result: Result of the job, as JSON, if one is kept.

    Returns:
        True if the job is finished by this claim. So the call may be repeated when the connection broke before
        the answer came.
    """
    # Two statements: the first one touches one partition of finished_jobs, of however many there are, and the second
    # one is needed in the rarest case only.
    return finish_once(connection, claim, result) or is_finished(connection, claim)


def finish_once(connection: Connection, claim: Fenced, result: str | None = None) -> bool:
    """Record the job as finished.

    Returns:
        True if this very call has finished the job; a repeated call returns False.
    """
    (finished,) = fetch_one(connection, FINISH_ONCE, finish_parameters(claim, result))
    return bool(finished)


def finish_parameters(claim: Fenced, result: str | None) -> tuple[object, ...]:
    """Return the parameters of a statement that calls `drain_finish`."""
    return claim.id, claim.fencing_token, claim.salt, claim.worker, result


def finish_or_fail(connection: AnyConnection, *, waits: bool) -> str:
    """Return the statement of `finish_and_commit`, which divides by zero if the claim is stale."""
    return within(home_of(connection), FINISH_OR_FAIL if waits else FINISH_OR_FAIL_WITHOUT_WAIT)


def finish_and_commit(
    connection: Connection, claim: Fenced, *, waits: bool = True, result: str | None = None
) -> bool:
    """Record the job as finished together with the writes of the open transaction: both are committed, or neither.

    Args:
        connection: In the transaction, under any search_path if `postgres.connect` has opened it.
        claim: The claim.
        waits: Wait until the commit is on the disk, as the session's settings say. Otherwise a crash of the server may
            undo it, as if it had never been, until `undone_by_crash` has made it durable.
        result: Result of the job, as JSON, if one is kept.

    Returns:
        True if both are committed. Otherwise the claim is stale, or has been used already, and all is rolled back.

    Raises:
        psycopg.Error: All is rolled back. After an OperationalError it is unknown whether all is committed.
    """
    try:
        execute_and_commit(
            connection, finish_or_fail(connection, waits=waits), finish_parameters(claim, result)
        )
    except DivisionByZero:
        connection.rollback()
        # Under a current claim the division by zero is that of a trigger.
        if is_current(connection, claim):
            raise
        return False
    return True


def add_result(connection: Connection, claim: Fenced, result: str) -> bool:
    """Add the result to a job that its own transaction has finished, within the last day.

    Returns:
        True unless this claim has not finished the job, or a crash has undone that.
    """
    return connection.execute(ADD_RESULT, {**of_one(claim), "result": result}).rowcount > 0


def finish_many(
    connection: Connection, claims: Sequence[Fenced], results: Mapping[int, str] | None = None
) -> set[int]:
    """Record many jobs as finished, each only if its claim is still the current one, in one statement.

    Args:
        connection: In autocommit mode.
        claims: Claims of the jobs, all made by one process.
        results: Results, as JSON, of those jobs that keep one, by job id.

    Returns:
        Ids of the jobs that this very call has finished; `finish` finds out about each of the others.

    Raises:
        psycopg.IntegrityError: A job with the id of one of them is finished already; none has been recorded.
    """
    given = of_many(claims)
    if not results:
        rows = connection.execute(FINISH_MANY, given, binary=True)
    else:
        members = ",".join(f'"{job_id}":{result}' for job_id, result in results.items())
        rows = connection.execute(
            FINISH_MANY_WITH_RESULTS, {**given, "results": f"{{{members}}}"}, binary=True
        )
    return {job_id for (job_id,) in rows}


def undone_by_crash(connection: Connection, claims: Sequence[Fenced]) -> set[int]:
    """Make finishes durable whose commits have not waited for the disk; return the ids of jobs whose finish is gone.

    When this returns, no crash of the server undoes the finishes of the others.

    Args:
        connection: In autocommit mode.
        claims: Claims of one process, whose jobs `finish_and_commit` has finished, within the last day. A finish is
            gone if the server has crashed since: then the job is in flight again, perhaps claimed by another worker by
            now, and nothing of its transaction is left.
    """
    *_, lasting = fetch_one(connection, LASTING, of_many(claims))
    return {claim.id for claim in claims}.difference(lasting)


def are_finished(connection: Connection, ids: Sequence[int]) -> dict[int, bool]:
    """Look jobs up by id: True if finished within the last day, under any token; False if in flight."""
    return dict(connection.execute(ARE_FINISHED, {"ids": id_array(ids)}).fetchall())


def is_finished(connection: Connection, claim: Fenced) -> bool:
    """Return True if this very claim has finished the job, within the last day; if so, durably."""
    *_, finished = fetch_one(connection, within(home_of(connection), IS_FINISHED), of_one(claim))
    return bool(finished)
