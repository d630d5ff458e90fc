"""Hooks around an attempt, which may fail it: context managers, first registered outermost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any

from drain import hooks
from drain.workers.context.current import CurrentJob
from drain.workers.errors import (
    Dead,
    Defer,
    HookError,
    JobCancelledError,
    JobTimeoutError,
    LeaseLostError,
    RateLimited,
    Retry,
    WorkerStoppedError,
)

# Hooks cannot swallow these.
_DECIDES = (
    *(Retry, Defer, RateLimited, Dead),
    *(JobCancelledError, JobTimeoutError, LeaseLostError, WorkerStoppedError),
)


class _Decision:
    """Latest exception, which no hook can swallow before the call: the job would count as finished."""

    error: BaseException | None = None
    calls = False

    def see(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, trace
        # In an event loop, interruptions are cancellations; asyncio's own cannot be swallowed either.
        if error is not None and not (
            self.calls and isinstance(error, Exception) and not isinstance(error, _DECIDES)
        ):
            self.error = error


def call(job: CurrentJob, function: Callable[[], Any]) -> Any:
    """Call within the synchronous hooks."""
    decision = _Decision()
    with ExitStack() as stack:
        for hook in hooks.around_hooks:
            stack.push(decision.see)
            manager, is_async = _manager(hook, job)
            if not is_async:
                stack.enter_context(manager)
        stack.push(decision.see)
        decision.calls = True
        return function()
    if decision.error is not None:
        raise decision.error
    return None


async def wait(job: CurrentJob, function: Callable[[], Awaitable[Any]]) -> Any:
    """Await within all hooks."""
    decision = _Decision()
    async with AsyncExitStack() as stack:
        for hook in hooks.around_hooks:
            stack.push(decision.see)
            manager, is_async = _manager(hook, job)
            if is_async:
                await stack.enter_async_context(manager)
            else:
                stack.enter_context(manager)
        stack.push(decision.see)
        decision.calls = True
        return await function()
    if decision.error is not None:
        raise decision.error
    return None


def _manager(hook: hooks.Hook, job: CurrentJob) -> tuple[Any, bool]:
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
