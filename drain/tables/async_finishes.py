"""Commits of async jobs, under the fence of their claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.errors import DivisionByZero

from drain.database.cursor import execute_and_commit_async
from drain.database.postgres import home_of
from drain.database.qualified import within
from drain.tables.cancellations import IS_CANCELLED
from drain.tables.fences import Fenced, of_one
from drain.tables.finishes import IS_FINISHED, finish_or_fail, finish_parameters
from drain.tables.leases import IS_CURRENT

Connection = psycopg.AsyncConnection[Any]


async def finish_and_commit(
    connection: Connection, claim: Fenced, *, waits: bool = True, result: str | None = None
) -> bool:
    """See `finishes.finish_and_commit`."""
    statement = finish_or_fail(connection, waits=waits)
    return await commit_under_fence(connection, claim, statement, finish_parameters(claim, result))


async def commit_under_fence(
    connection: Connection, claim: Fenced, statement: str, parameters: Sequence[object]
) -> bool:
    """See `finishes.commit_under_fence`."""
    try:
        await execute_and_commit_async(connection, statement, parameters)
    except DivisionByZero:
        await connection.rollback()
        if await _answer(connection, IS_CURRENT, claim):
            raise
        return False
    return True


async def is_finished(connection: Connection, claim: Fenced) -> bool:
    """See `finishes.is_finished`."""
    return await _answer(connection, IS_FINISHED, claim)


async def is_cancelled(connection: Connection, claim: Fenced) -> bool:
    """See `cancellations.is_cancelled`."""
    return await _answer(connection, IS_CANCELLED, claim)


async def _answer(connection: Connection, question: str, claim: Fenced) -> bool:
    cursor = await connection.execute(within(home_of(connection), question), of_one(claim))
    row: tuple[Any, ...] | None = await cursor.fetchone()
    return bool(row and row[-1])
