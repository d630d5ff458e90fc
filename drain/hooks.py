"""Hooks: application functions called at staging, around attempts, and when a job ends.

    @drain.around
    @contextmanager
    def with_tenant(job: drain.CurrentJob) -> Iterator[None]:
        with tenants.use(job.kwargs["tenant"]):
            yield

Hooks apply to all jobs of the process that imports them; the first registered is the outermost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from drain.errors import StageError

Hook = Callable[..., Any]
F = TypeVar("F", bound=Hook)

# New tuples on each change: any thread may read them.
around_hooks: tuple[Hook, ...] = ()
stage_hooks: tuple[Hook, ...] = ()
finish_hooks: tuple[Hook, ...] = ()
dead_hooks: tuple[Hook, ...] = ()


def around(hook: F) -> F:
    """Register a function whose context manager is entered around each attempt.

    It gets what `drain.current_job()` returns, in the job's thread, task or process, within its timeout. The job's
    exceptions pass through it; its own count as the attempt's. It may replace exceptions and swallow errors, but not
    Retry, Defer, RateLimited, Dead or an interruption.

    Args:
        hook: A function that returns a context manager, or a generator function that yields once. Asynchronous ones
            apply to `async def` jobs only.

    Raises:
        TypeError: Not such a function.
    """
    global around_hooks  # noqa: PLW0603
    _check("around", hook, "a function that returns a context manager")
    entered: Hook = hook
    if inspect.isgeneratorfunction(hook):
        entered = contextmanager(hook)
    elif inspect.isasyncgenfunction(hook):
        entered = asynccontextmanager(hook)
    if not _is_in(around_hooks, hook):
        around_hooks = (*around_hooks, entered)
    return hook


def on_stage(hook: F) -> F:
    """Register a function called before jobs are inserted: `hook(name, args, kwargs, context)`.

    It may change the dictionary `context`, or return a mapping to add. An exception refuses the job with a StageError;
    the transaction is unchanged. `drain.stage_many` calls it once for all jobs, which share the context; `args` and
    `kwargs` are None then.

    Args:
        hook: The function.

    Raises:
        TypeError: Not such a function.
    """
    global stage_hooks  # noqa: PLW0603
    _check("on_stage", hook, "a function of a job's name, args, kwargs and context")
    if not _is_in(stage_hooks, hook):
        stage_hooks = (*stage_hooks, hook)
    return hook


def on_finish(hook: F) -> F:
    """Register a function called in the worker after a job finished: `hook(job)`.

    Called at most once: not if the worker is killed first. To be sure, stage a job in `transaction()` instead.
    Exceptions are only logged.

    Args:
        hook: A function that takes what `drain.current_job()` returned.

    Raises:
        TypeError: Not such a function.
    """
    global finish_hooks  # noqa: PLW0603
    _check("on_finish", hook, "a function of a job")
    if not _is_in(finish_hooks, hook):
        finish_hooks = (*finish_hooks, hook)
    return hook


def on_dead(hook: F) -> F:
    """Register a function called after a worker gave a job up: `hook(job, reason)`.

    Called at most once, as `on_finish`. `drain dead` lists all dead jobs.

    Args:
        hook: A function that takes the job, as for `on_finish`, and its `explanation` in `dead_jobs`.

    Raises:
        TypeError: Not such a function.
    """
    global dead_hooks  # noqa: PLW0603
    _check("on_dead", hook, "a function of a job and the reason of its death")
    if not _is_in(dead_hooks, hook):
        dead_hooks = (*dead_hooks, hook)
    return hook


def remove(hook: Hook) -> None:
    """Unregister a hook."""
    global around_hooks, stage_hooks, finish_hooks, dead_hooks
    around_hooks, stage_hooks = _without(around_hooks, hook), _without(stage_hooks, hook)
    finish_hooks, dead_hooks = _without(finish_hooks, hook), _without(dead_hooks, hook)


def staging(
    name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    context: Mapping[str, Any] | None,
) -> Mapping[str, Any] | None:
    """Call the `on_stage` hooks; returns the context, or raises StageError."""
    # Invalid types are refused later.
    if not stage_hooks or not (context is None or isinstance(context, Mapping)):
        return context
    changed = dict(context or {})
    for hook in stage_hooks:
        try:
            added = hook(name, args, kwargs, changed)
            if added is not None and added is not changed:
                changed.update(added)
        except StageError:
            raise
        except Exception as error:
            raise StageError(
                f"the hook {name_of(hook)} refused {name}: {type(error).__name__}: {error}"
            ) from error
    return changed if changed or context is not None else None


class Producer(Protocol):
    """Instrumentation of calls that stage jobs."""

    def begin(self, name: str, queue: str, *, many: bool) -> Any:
        """Return the argument of `end`; called before `on_stage` hooks."""

    def end(self, begun: Any, ids: Sequence[int], error: BaseException | None) -> None:
        """End with the ids inserted, or an error."""


producers: tuple[Producer, ...] = ()


def add_producer(producer: Producer) -> None:
    """Register an instrumentation."""
    global producers  # noqa: PLW0603
    producers = (*producers, producer)


def remove_producer(producer: Producer) -> None:
    """Unregister an instrumentation."""
    global producers  # noqa: PLW0603
    producers = tuple(each for each in producers if each is not producer)


class Production:
    """Block that stages jobs and sets `ids`, measured by all producers."""

    __slots__ = ("_begun", "_many", "_name", "_queue", "ids")

    def __init__(self, name: str, queue: str, *, many: bool = False) -> None:
        self.ids: Sequence[int] = ()
        self._name, self._queue, self._many = name, queue, many
        self._begun: list[tuple[Producer, Any]] = []

    def __enter__(self) -> Production:
        self._begun = [
            (producer, producer.begin(self._name, self._queue, many=self._many)) for producer in producers
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for producer, begun in reversed(self._begun):
            producer.end(begun, self.ids, error)


def name_of(hook: Hook) -> str:
    """Return a hook's name for messages."""
    module, name = getattr(hook, "__module__", None), getattr(hook, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(hook)


def _check(decorator: str, hook: object, wanted: str) -> None:
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        found = "an async def" if callable(hook) else f"a {type(hook).__name__}"
        raise TypeError(f"@drain.{decorator} is for {wanted}, not for {found}")
    yields = inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook)
    if yields and decorator != "around":
        raise TypeError(f"@drain.{decorator} is for {wanted}; {name_of(hook)} yields, and would never run")


def _is_in(known: tuple[Hook, ...], hook: Hook) -> bool:
    return any(_is(each, hook) for each in known)


def _without(known: tuple[Hook, ...], hook: Hook) -> tuple[Hook, ...]:
    return tuple(each for each in known if not _is(each, hook))


def _is(known: Hook, hook: Hook) -> bool:
    # Bound methods differ at each look-up.
    return known == hook or getattr(known, "__wrapped__", None) is hook
