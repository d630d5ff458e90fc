"""As `steps`, for `async def` jobs."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import psycopg

from drain.database import postgres
from drain.errors import UnavailableError
from drain.tables import steps
from drain.tables.steps import Recorded, Step
from drain.workers.context.async_connection_cache import bare
from drain.workers.context.async_transaction import require_greenlet
from drain.workers.context.current import Attempt, current_attempt
from drain.workers.context.finish_guard import recording
from drain.workers.context.loading import load
from drain.workers.context.step_options import async_retried, was, with_options
from drain.workers.context.steps import PAUSE_SECONDS, begun, checked, may_have_some, steps_of, unfit

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

P = ParamSpec("P")


@with_options
async def async_step(
    name: str, function: Callable[P, Awaitable[Any]], /, *args: P.args, **kwargs: P.kwargs
) -> Any:
    """As `step`, for an `async def` function; steps may run at the same time."""
    attempt, name = current_attempt(), checked(name)
    if (kept := await find(attempt, name, function)) is None:
        with begun(attempt, name, function) as ran:
            call = partial(_ended, function, *args, **kwargs)
            kept = ran(await async_retried(attempt, name, function, call))
            await _record(attempt, kept)
    return json.loads(kept.result)


@with_options
async def async_step_transaction(
    name: str,
    function: Callable[Concatenate[AsyncSession, P], Awaitable[Any]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Any:
    """As `step_transaction`, for an `async def` function, which gets an AsyncSession. Needs greenlet."""
    attempt, name = current_attempt(), checked(name)
    require_greenlet("async_step_transaction")
    load("drain.workers.context.async_session")
    from drain.workers.context.async_session import commit_with_the_finish, driver_of_session, session_of

    if (kept := await find(attempt, name, function)) is None:
        with begun(attempt, name, function) as ran:

            async def write() -> Step:
                async with session_of(attempt.database_url) as session:
                    value = await _ended(function, session, *args, **kwargs)
                    await session.flush()
                    done = ran(value)
                    with recording(attempt, await driver_of_session(session), done):
                        await commit_with_the_finish(session)
                return done

            kept = await async_retried(attempt, name, function, write)
    return json.loads(kept.result)


@with_options
async def async_psycopg_step_transaction(
    name: str,
    function: Callable[Concatenate[psycopg.AsyncConnection[Any], P], Awaitable[Any]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Any:
    """As `psycopg_step_transaction`, for an `async def` function, which gets an AsyncConnection."""
    attempt, name = current_attempt(), checked(name)
    if (kept := await find(attempt, name, function)) is None:
        with begun(attempt, name, function) as ran:

            async def write() -> Step:
                async with bare(attempt.database_url) as connection:
                    done = ran(await _ended(function, connection, *args, **kwargs))
                    with recording(attempt, connection, done):
                        await connection.commit()
                return done

            kept = await async_retried(attempt, name, function, write)
    return json.loads(kept.result)


async def find(attempt: Attempt, name: str, function: Callable[..., Any] | None = None) -> Step | None:
    """See `steps.find`."""
    steps = steps_of(attempt, name)
    if steps.needs_reading(name, may_have_some=may_have_some(attempt)):
        steps.kept = await _read(attempt, waits=bool(steps.doubtful))
    return steps.take(name, was(function))


async def _ended(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return the value of a coroutine function, or of a plain one."""
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


async def _read(attempt: Attempt, *, waits: bool) -> dict[str, Recorded]:
    async with bare(attempt.database_url) as connection:
        kept = await steps.read_async(connection, attempt.claim, waits=waits)
        await connection.rollback()
    return kept


async def _record(attempt: Attempt, done: Step) -> None:
    is_in_doubt = False
    while True:
        try:
            with postgres.reachable(attempt.database_url):
                async with bare(attempt.database_url) as connection:
                    with recording(attempt, connection, done):
                        await connection.commit()
        except psycopg.errors.UniqueViolation:
            if not is_in_doubt:
                raise
        except psycopg.DataError as error:
            raise unfit(attempt, done, error) from None
        except UnavailableError:
            if attempt.lease.seconds_left() < PAUSE_SECONDS:
                raise
            is_in_doubt = True
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        return
