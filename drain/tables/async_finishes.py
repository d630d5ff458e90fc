"""Finishes in the transaction of an async job: the statements of `finishes`, awaited."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
from psycopg.errors import DivisionByZero

from drain.database.cursor import execute_and_commit_async
from drain.tables.cancellations import IS_CANCELLED
from drain.tables.finishes import IS_FINISHED, finish_or_fail
from drain.tables.leases import IS_CURRENT

Connection = psycopg.AsyncConnection[Any]


async def finish_and_commit(
    connection: Connection, job_id: int, token: int, *, waits: bool = True, result: str | None = None
) -> bool:
    """Record the job as finished together with the writes of the open transaction; see `finishes`.

    Raises:
        psycopg.Error: All is rolled back. After an OperationalError it is unknown whether all is committed.
    """
    try:
        statement, parameters = finish_or_fail(job_id, token, waits=waits, result=result)
        await execute_and_commit_async(connection, statement, parameters)
    except DivisionByZero:
        await connection.rollback()
        # Under a current token the division by zero is that of a trigger.
        if await _answer(connection, IS_CURRENT, job_id, token):
            raise
        return False
    return True


async def is_finished(connection: Connection, job_id: int, token: int) -> bool:
    """Return True if the job has been finished under this very token, within the last day; if so, durably."""
    return await _answer(connection, IS_FINISHED, job_id, token)


async def is_cancelled(connection: Connection, job_id: int, token: int) -> bool:
    """Return True if the job was cancelled after the claim with this token."""
    return await _answer(connection, IS_CANCELLED, job_id, token)


async def _answer(connection: Connection, question: LiteralString, job_id: int, token: int) -> bool:
    cursor = await connection.execute(question, (job_id, token))
    row: tuple[Any, ...] | None = await cursor.fetchone()
    return bool(row and row[-1])
