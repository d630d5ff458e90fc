"""Hooks around an attempt: the context managers of `drain.around`, entered before the job's function and left after it.

The first registered is the outermost. An exception of a hook is one of the attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from drain import hooks
from workers.context.current import CurrentJob
from workers.errors import (
    Dead,
    Defer,
    HookError,
    JobCancelledError,
    JobTimeoutError,
    LeaseLostError,
    RateLimited,
    WorkerStoppedError,
)

# Exceptions that decide what becomes of the attempt: a hook sees them, and cannot swallow them.
_DECIDES = (
    *(Defer, RateLimited, Dead),
    *(JobCancelledError, JobTimeoutError, LeaseLostError, WorkerStoppedError),
)


def call(job: CurrentJob, function: Callable[[], Any]) -> Any:
    """Call a function within the hooks whose context managers are synchronous."""
    decision: BaseException | None = None
    with ExitStack() as stack:
        for hook in hooks.around_hooks:
            manager, is_async = _manager(hook, job)
            if not is_async:
                stack.enter_context(manager)
        try:
            return function()
        except _DECIDES as error:
            decision = error
            raise
    if decision is not None:
        raise decision
    return None


async def wait(job: CurrentJob, function: Callable[[], Awaitable[Any]]) -> Any:
    """Await what a function returns within all hooks."""
    decision: BaseException | None = None
    async with AsyncExitStack() as stack:
        for hook in hooks.around_hooks:
            manager, is_async = _manager(hook, job)
            if is_async:
                await stack.enter_async_context(manager)
            else:
                stack.enter_context(manager)
        try:
            return await function()
        # An interruption is a cancellation here; asyncio's own may be swallowed as little.
        except BaseException as error:
            if isinstance(error, _DECIDES) or not isinstance(error, Exception):
                decision = error
            raise
    if decision is not None:
        raise decision
    return None


def _manager(hook: hooks.Hook, job: CurrentJob) -> tuple[Any, bool]:
    """Return the context manager of a hook, and whether it can be entered in an event loop alone."""
    manager = hook(job)
    kind = type(manager)
    if hasattr(kind, "__enter__") and hasattr(kind, "__exit__"):
        return manager, False
    if hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
        return manager, True
    raise HookError(
        f"the hook {hooks.name_of(hook)} returned a {kind.__name__}, not a context manager; "
        "decorate it with contextlib.contextmanager"
    )
