"""`astage` and `astage_many`, for asynchronous applications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from drain import hooks
from drain.jobs import async_executors, rows
from drain.jobs.async_executors import AsyncConnectable
from drain.jobs.rows import Arguments, Job
from drain.jobs.stage_options import ManyOptions, StageOptions


async def astage(
    connection: AsyncConnectable,
    job: Job,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[StageOptions],
) -> int:
    """Stage one job on an asynchronous connection; one round trip.

    Args:
        connection: A SQLAlchemy AsyncSession or AsyncConnection, a psycopg AsyncConnection or AsyncCursor, or an
            asyncpg Connection; never committed.
        job: As for `drain.stage`.
        args: As for `drain.stage`.
        kwargs: As for `drain.stage`.
        options: As for `drain.stage`.

    Returns:
        As `drain.stage`.

    Raises:
        StageError: As `drain.stage`.
        IdempotencyConflictError: As `drain.stage`.

    Warns:
        UserWarning: On asyncpg without a transaction, the job commits on its own.
    """
    if not hooks.producers:
        return await _stage(connection, job, args, kwargs, options)
    with rows.production(job, options) as production:
        job_id = await _stage(connection, job, args, kwargs, options)
        production.ids = (job_id,)
        return job_id


async def _stage(
    connection: AsyncConnectable,
    job: Job,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: StageOptions,
) -> int:
    insert = rows.insert_one(job, args, kwargs, **options)
    (job_id,) = insert.ids(await async_executors.insert(connection, insert.statement, insert.parameters))
    return job_id


async def astage_many(
    connection: AsyncConnectable,
    job: Job,
    arguments: Iterable[Arguments],
    **options: Unpack[ManyOptions],
) -> list[int]:
    """Stage one job per element of `arguments`, 10,000 per statement.

    Args:
        connection: As for `drain.astage`.
        job: As for `drain.stage`.
        arguments: As for `drain.stage_many`.
        options: As for `drain.stage_many`.

    Returns:
        Ids in order.

    Raises:
        StageError: As `drain.stage_many`.

    Warns:
        UserWarning: As `drain.astage`.
    """
    if not hooks.producers:
        return await _stage_many(connection, job, arguments, options)
    with rows.production(job, options, many=True) as production:
        production.ids = ids = await _stage_many(connection, job, arguments, options)
        return ids


async def _stage_many(
    connection: AsyncConnectable, job: Job, arguments: Iterable[Arguments], options: ManyOptions
) -> list[int]:
    ids: list[int] = []
    for insert in rows.insert_many(job, arguments, **options):
        ids += await async_executors.insert(connection, insert.statement, insert.parameters)
    return ids
