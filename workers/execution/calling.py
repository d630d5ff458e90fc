"""Call of a job's function within hooks."""

from __future__ import annotations

import asyncio
import inspect
import os
from contextlib import suppress
from types import CoroutineType
from typing import Any, NamedTuple

from drain import hooks
from drain.jobs import registry
from drain.workers.context import django_connections
from drain.workers.context.current import Attempt
from drain.workers.errors import INTERRUPTIONS, TransactionError
from drain.workers.execution import around
from drain.workers.execution.forked import leave_if_forked

# Attempts awaited in this process' event loop.
_waiting: set[Attempt] = set()

LEFT_OPEN = "the function returned while its transaction() was still open; its writes are rolled back"


class Call(NamedTuple):
    """Function and arguments of a job."""

    job: registry.Job[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


def call_here(call: Call, attempt: Attempt) -> None:
    """Call in this thread; an `async def` is awaited in its own loop."""
    pid = os.getpid()
    django_connections.renew()
    try:
        try:
            returned = _call_within_hooks(call, attempt) if hooks.around_hooks else _call(call, attempt)
        # A child forked by the job would end its parent's connections.
        except BaseException as error:
            leave_if_forked(pid, error)
            raise
        leave_if_forked(pid)
        if call.job.job_options.keeps_result:
            attempt.keep_returned(returned)
    finally:
        # Too late for an interruption.
        with suppress(*INTERRUPTIONS):
            django_connections.renew()


async def wait(call: Call, attempt: Attempt) -> None:
    """Await in the running loop."""
    pid = os.getpid()
    django_connections.renew_beside_the_loop(others=bool(_waiting))
    _waiting.add(attempt)
    try:
        try:
            coroutine = _within_hooks(call, attempt) if hooks.around_hooks else _called(call)
            attempt.interruption.coroutine = coroutine
            returned = await coroutine
        except BaseException as error:
            leave_if_forked(pid, error)
            raise
        leave_if_forked(pid)
        if call.job.job_options.keeps_result:
            attempt.keep_returned(returned)
    finally:
        _waiting.discard(attempt)
        django_connections.renew_beside_the_loop(others=bool(_waiting))


def _called(call: Call) -> Any:
    return call.job.function(*call.args, **call.kwargs)


def _call(call: Call, attempt: Attempt) -> Any:
    returned = _called(call)
    # isinstance() may run code of a proxy.
    if issubclass(type(returned), CoroutineType):
        attempt.interruption.coroutine = returned
        django_connections.renew_beside_the_loop()
        return asyncio.run(_awaited(attempt, returned))
    return returned


async def _awaited(attempt: Attempt, coroutine: CoroutineType[Any, Any, Any]) -> Any:
    returned = await coroutine
    # asyncio then cancels the remaining tasks: an abandoned block would look ended.
    if attempt.in_transaction:
        raise TransactionError(LEFT_OPEN)
    return returned


def _call_within_hooks(call: Call, attempt: Attempt) -> Any:
    pid = os.getpid()

    def act() -> Any:
        try:
            returned = _call(call, attempt)
        # A child forked by the job would leave the hooks again.
        except BaseException as error:
            leave_if_forked(pid, error)
            raise
        leave_if_forked(pid)
        return returned

    if inspect.iscoroutinefunction(call.job.function):
        attempt.interruption.coroutine = coroutine = _within_hooks(call, attempt)
        django_connections.renew_beside_the_loop()
        return asyncio.run(_awaited(attempt, coroutine))
    return around.call(attempt.current, act)


def _within_hooks(call: Call, attempt: Attempt) -> Any:
    pid = os.getpid()

    async def act() -> Any:
        try:
            returned = await _called(call)
        except BaseException as error:
            leave_if_forked(pid, error)
            # Hooks see the cause of an interruption, as outside the loop.
            cause = attempt.interruption.cause() if isinstance(error, asyncio.CancelledError) else None
            if cause is not None:
                raise cause.with_traceback(error.__traceback__) from None
            raise
        leave_if_forked(pid)
        return returned

    return around.wait(attempt.current, act)
