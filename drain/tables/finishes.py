"""Finishes of claims: the job leaves `inflight_jobs` for `finished_jobs`, if the token of the claim is current.

A worker finishes jobs by themselves, alone or many in one statement; or in the transaction of the job, whose commit
either waits for the disk, or is made durable later, together with many others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import LiteralString

from psycopg.errors import DivisionByZero

from drain.database.cursor import execute_and_commit
from drain.database.postgres import Connection, fetch_one
from drain.tables.claims import Claim
from drain.tables.columns import FINISHED, FINISHED_VALUES, id_array
from drain.tables.leases import THESE_CLAIMS, ids_and_tokens, is_current

FINISH_ONCE = "SELECT drain_finish(%(id)s::bigint, %(token)s::bigint)"
FINISH_WITH_RESULT = "SELECT drain_finish_with_result(%(id)s::bigint, %(token)s::bigint, %(result)s::jsonb)"
# The server commits nothing behind a statement that fails, so the commit is sent before the answer comes: a job of one
# statement has two exchanges with the server instead of three.
FINISH_OR_FAIL = "SELECT 1 / drain_finish(%s::bigint, %s::bigint)::integer"
FINISH_OR_FAIL_WITHOUT_WAIT = (
    "SELECT set_config('synchronous_commit', 'off', true), 1 / drain_finish(%s::bigint, %s::bigint)::integer"
)
RESULT_OR_FAIL = "SELECT 1 / drain_finish_with_result(%s::bigint, %s::bigint, %s::jsonb)::integer"
RESULT_OR_FAIL_WITHOUT_WAIT = (
    "SELECT set_config('synchronous_commit', 'off', true), "
    "1 / drain_finish_with_result(%s::bigint, %s::bigint, %s::jsonb)::integer"
)
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
    SELECT id FROM finished_jobs WHERE {THESE_CLAIMS} AND finished_at > now() - interval '1 day')
"""
IS_FINISHED = f"""
SELECT {_FLUSH}, EXISTS (
    SELECT FROM finished_jobs
    WHERE id = %s AND fencing_token = %s AND finished_at > now() - interval '1 day')
"""
ARE_FINISHED = """
SELECT id, true FROM finished_jobs
WHERE id = ANY (%(ids)s::bigint[]) AND finished_at > now() - interval '1 day'
UNION ALL
SELECT id, false FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[])
"""


def finish(connection: Connection, job_id: int, token: int, result: str | None = None) -> bool:
    """Record the job as finished, if `token` is still the current one.

    Args:
        connection: In autocommit mode.
        job_id: Id of the job.
        token: Token of its claim.
        result: Result of the job, as JSON, if one is kept.

    Returns:
        True if the job is finished under this token. So the call may be repeated when the connection broke before
        the answer came.
    """
    # Two statements: the first one touches one partition of finished_jobs, of however many there are, and the second
    # one is needed in the rarest case only.
    return finish_once(connection, job_id, token, result) or is_finished(connection, job_id, token)


def finish_once(connection: Connection, job_id: int, token: int, result: str | None = None) -> bool:
    """Record the job as finished.

    Returns:
        True if this very call has finished the job; a repeated call returns False.
    """
    given = {"id": job_id, "token": token}
    if result is None:
        (finished,) = fetch_one(connection, FINISH_ONCE, given)
    else:
        (finished,) = fetch_one(connection, FINISH_WITH_RESULT, {**given, "result": result})
    return bool(finished)


def finish_or_fail(
    job_id: int, token: int, *, waits: bool, result: str | None
) -> tuple[LiteralString, tuple[object, ...]]:
    """Return the statement of `finish_and_commit`, which divides by zero if the token is stale, and its parameters."""
    if result is None:
        return FINISH_OR_FAIL if waits else FINISH_OR_FAIL_WITHOUT_WAIT, (job_id, token)
    return RESULT_OR_FAIL if waits else RESULT_OR_FAIL_WITHOUT_WAIT, (job_id, token, result)


def finish_and_commit(
    connection: Connection, job_id: int, token: int, *, waits: bool = True, result: str | None = None
) -> bool:
    """Record the job as finished together with the writes of the open transaction: both are committed, or neither.

    Args:
        connection: In the transaction.
        job_id: Id of the job.
        token: Token of its claim.
        waits: Wait until the commit is on the disk, as the session's settings say. Otherwise a crash of the server may
            undo it, as if it had never been, until `undone_by_crash` has made it durable.
        result: Result of the job, as JSON, if one is kept.

    Returns:
        True if both are committed. Otherwise the token is stale, or has been used already, and all is rolled back.

    Raises:
        psycopg.Error: All is rolled back. After an OperationalError it is unknown whether all is committed.
    """
    try:
        execute_and_commit(connection, *finish_or_fail(job_id, token, waits=waits, result=result))
    except DivisionByZero:
        connection.rollback()
        # Under a current token the division by zero is that of a trigger.
        if is_current(connection, job_id, token):
            raise
        return False
    return True


def finish_many(
    connection: Connection, claims: Sequence[Claim], results: Mapping[int, str] | None = None
) -> set[int]:
    """Record many jobs as finished, each only if its token is still the current one, in one statement.

    Args:
        connection: In autocommit mode.
        claims: Claims of the jobs.
        results: Results, as JSON, of those jobs that keep one, by job id.

    Returns:
        Ids of the jobs that this very call has finished; `finish` finds out about each of the others.

    Raises:
        psycopg.IntegrityError: A job with the id of one of them is finished already; none has been recorded.
    """
    given = ids_and_tokens(claims)
    if not results:
        rows = connection.execute(FINISH_MANY, given, binary=True)
    else:
        members = ",".join(f'"{job_id}":{result}' for job_id, result in results.items())
        rows = connection.execute(
            FINISH_MANY_WITH_RESULTS, {**given, "results": f"{{{members}}}"}, binary=True
        )
    return {job_id for (job_id,) in rows}


def undone_by_crash(connection: Connection, claims: Sequence[Claim]) -> set[int]:
    """Make finishes durable whose commits have not waited for the disk; return the ids of jobs whose finish is gone.

    When this returns, no crash of the server undoes the finishes of the others.

    Args:
        connection: In autocommit mode.
        claims: Claims whose jobs `finish_and_commit` has finished, within the last day. A finish is gone if the server
            has crashed since: then the job is in flight again, perhaps claimed by another worker by now, and nothing of
            its transaction is left.
    """
    *_, lasting = fetch_one(connection, LASTING, ids_and_tokens(claims))
    return {claim.id for claim in claims}.difference(lasting)


def are_finished(connection: Connection, ids: Sequence[int]) -> dict[int, bool]:
    """Look jobs up by id: True if finished within the last day, under any token; False if in flight."""
    return dict(connection.execute(ARE_FINISHED, {"ids": id_array(ids)}).fetchall())


def is_finished(connection: Connection, job_id: int, token: int) -> bool:
    """Return True if the job has been finished under this very token, within the last day; if so, durably."""
    *_, finished = fetch_one(connection, IS_FINISHED, (job_id, token))
    return bool(finished)
