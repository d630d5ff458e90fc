"""Statements in an asynchronous application's transaction, on SQLAlchemy, psycopg or asyncpg.

Never commits or rolls back. Placeholders are `%(name)s` inside a CAST; no other percent signs.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from drain.database import postgres
from drain.database.qualified import qualified
from drain.errors import ConnectableError, StageError
from drain.jobs import executors

if TYPE_CHECKING:
    import asyncpg
    import asyncpg.pool
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

AsyncConnectable: TypeAlias = (
    "AsyncSession | AsyncConnection | async_scoped_session[Any] | psycopg.AsyncConnection[Any] "
    "| psycopg.AsyncCursor[Any] | asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]"
)
_CAST = re.compile(r"CAST\(%\((\w+)\)s AS ([\w ]+)\)")
# An application's own codec would encode them twice.
_AS_TEXT = {"json", "jsonb"}


async def insert(connection: AsyncConnectable, statement: str, parameters: Mapping[str, Any]) -> list[int]:
    """Run a statement; see `executors.insert`."""
    statement = qualified(statement)
    driver = _of_psycopg(connection)
    if driver is not None:
        with executors.needing_tables():
            return await _insert_with_psycopg(driver, statement, parameters)
    if _is_of_asyncpg(connection):
        _warn_outside_transaction(connection)
    return [number for (number,) in await execute(connection, statement, parameters)]


async def execute(
    connection: AsyncConnectable, statement: str, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Run a statement; see `executors.execute`."""
    statement = qualified(statement)
    driver = _of_psycopg(connection)
    with executors.needing_tables():
        if driver is not None:
            async with psycopg.AsyncCursor(driver, row_factory=tuple_row) as cursor:
                await cursor.execute(statement.encode(), parameters, prepare=False, binary=True)
                return await cursor.fetchall()
        if _is_of_asyncpg(connection):
            return await _execute_with_asyncpg(connection, statement, parameters)
    return await _execute_with_sqlalchemy(connection, statement, parameters)


def _of_psycopg(connection: Any) -> psycopg.AsyncConnection[Any] | None:
    if isinstance(connection, psycopg.AsyncCursor):
        return connection.connection
    return connection if isinstance(connection, psycopg.AsyncConnection) else None


async def _insert_with_psycopg(
    connection: psycopg.AsyncConnection[Any], statement: str, parameters: Mapping[str, Any]
) -> list[int]:
    prepare = False if postgres.is_pooled(connection) else None
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(f"{statement}, pg_backend_pid()", parameters, prepare=prepare)
        rows = await cursor.fetchall()
    for _, pid in rows[:1]:
        postgres.detect_pooler(connection, pid)
    return [number for number, _ in rows]


async def require_transaction(connection: AsyncConnectable) -> None:
    """Raise StageError if each statement would commit on its own."""
    driver = _of_psycopg(connection)
    if driver is not None:
        commits = driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE
    elif _is_of_asyncpg(connection):
        commits = not connection.is_in_transaction()  # type: ignore[union-attr]
    else:
        await _of_sqlalchemy(connection).run_sync(executors.require_transaction)
        return
    if commits:
        raise StageError(executors.NO_TRANSACTION)


async def _execute_with_sqlalchemy(
    connection: Any, statement: str, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    driver: AsyncConnection = _of_sqlalchemy(connection)
    return await driver.run_sync(executors.execute, statement, parameters)


def _of_sqlalchemy(connection: Any) -> Any:
    # Such a connection implies the import.
    if "sqlalchemy.ext.asyncio" in sys.modules:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        if isinstance(connection, async_scoped_session):
            connection = connection()
        if isinstance(connection, AsyncSession | AsyncConnection):
            return connection
    hint = "; use drain.stage on it" if executors.is_one(connection) else ""
    raise ConnectableError(
        f"cannot work asynchronously on a {type(connection).__name__}{hint}; pass a SQLAlchemy AsyncSession or "
        "AsyncConnection, a psycopg AsyncConnection or AsyncCursor, or an asyncpg connection"
    )


class _Numbered(NamedTuple):
    statement: str
    names: list[str]


def _is_of_asyncpg(connection: Any) -> bool:
    module = sys.modules.get("asyncpg")
    return module is not None and isinstance(connection, module.Connection | module.pool.PoolConnectionProxy)


def _warn_outside_transaction(connection: Any) -> None:
    if not connection.is_in_transaction():
        warnings.warn(
            "no transaction is open on this asyncpg connection, so the job is committed at once; stage inside "
            "`async with connection.transaction():`",
            stacklevel=5,
        )


async def _execute_with_asyncpg(
    connection: Any, statement: str, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    numbered = _numbered(statement)
    rows = await connection.fetch(numbered.statement, *[parameters[name] for name in numbered.names])
    return [tuple(row) for row in rows]


@lru_cache(maxsize=500)
def _numbered(statement: str) -> _Numbered:
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name, kind = match.groups()
        if name not in names:
            names.append(name)
        place = f"${names.index(name) + 1}"
        return f"CAST({place}::text AS {kind})" if kind in _AS_TEXT else f"CAST({place} AS {kind})"

    return _Numbered(_CAST.sub(number, statement), names)
