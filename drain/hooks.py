"""Hooks: functions of an application that are called as any job is staged, around each attempt, and at a job's end.

    @drain.around
    @contextmanager
    def with_tenant(job: drain.CurrentJob) -> Iterator[None]:
        with tenants.use(job.kwargs["tenant"]):
            yield

A hook applies to all jobs of the process that imports its module; the first registered is the outermost. A process that
has registered none pays for one look at an empty tuple.
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

# Hooks of each kind, the first registered first. Each change makes a new tuple: any thread may read them.
around_hooks: tuple[Hook, ...] = ()
stage_hooks: tuple[Hook, ...] = ()
finish_hooks: tuple[Hook, ...] = ()
dead_hooks: tuple[Hook, ...] = ()


def around(hook: F) -> F:
    """Register a function that returns a context manager, which is entered around each attempt at a job.

    The function is called with what `drain.current_job()` returns, in the thread, task or process of the job, and
    within the time limit of the attempt. The block of the context manager is the call of the job's function: what the
    block raises is what the job raises. An exception of a hook counts as one of the attempt. A hook may raise another
    exception in place of the job's, and may swallow an error, but not Retry, Defer, RateLimited, Dead or an
    interruption.

    Args:
        hook: Such a function, or a generator function that yields once. If its context manager is an asynchronous one,
            or if it is an asynchronous generator function, it is entered around `async def` jobs alone.

    Raises:
        TypeError: It is not such a function.
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
    """Register a function that is called as jobs are staged, before the INSERT: `hook(name, args, kwargs, context)`.

    `context` is a dictionary, which the function may change; the members of a mapping that it returns are added. An
    exception refuses the job with a StageError, and the transaction is unchanged. `drain.stage_many` calls it once for
    all its jobs, which share one context: `args` and `kwargs` are None then.

    Args:
        hook: Such a function.

    Raises:
        TypeError: It is not such a function.
    """
    global stage_hooks  # noqa: PLW0603
    _check("on_stage", hook, "a function of a job's name, args, kwargs and context")
    if not _is_in(stage_hooks, hook):
        stage_hooks = (*stage_hooks, hook)
    return hook


def on_finish(hook: F) -> F:
    """Register a function that is called in the worker once a job is recorded as finished: `hook(job)`.

    It is called at most once: a worker that is killed between the two never calls it. What must happen for sure is a
    job of its own, staged in the job's `transaction()`. An exception is logged, and changes nothing.

    Args:
        hook: A function of what `drain.current_job()` returned while the job ran.

    Raises:
        TypeError: It is not such a function.
    """
    global finish_hooks  # noqa: PLW0603
    _check("on_finish", hook, "a function of a job")
    if not _is_in(finish_hooks, hook):
        finish_hooks = (*finish_hooks, hook)
    return hook


def on_dead(hook: F) -> F:
    """Register a function that is called in the worker once a job is recorded as dead: `hook(job, reason)`.

    It is called at most once, as a hook of `on_finish`, and only for a job that a worker has given up: `drain dead`
    and the metrics show all. An exception is logged, and changes nothing.

    Args:
        hook: A function of the job, as for `on_finish`, and of the text that `dead_jobs` has as `explanation`.

    Raises:
        TypeError: It is not such a function.
    """
    global dead_hooks  # noqa: PLW0603
    _check("on_dead", hook, "a function of a job and the reason of its death")
    if not _is_in(dead_hooks, hook):
        dead_hooks = (*dead_hooks, hook)
    return hook


def remove(hook: Hook) -> None:
    """Take a hook away from all kinds that it is registered for."""
    global around_hooks, stage_hooks, finish_hooks, dead_hooks
    around_hooks, stage_hooks = _without(around_hooks, hook), _without(stage_hooks, hook)
    finish_hooks, dead_hooks = _without(finish_hooks, hook), _without(dead_hooks, hook)


def staging(
    name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    context: Mapping[str, Any] | None,
) -> Mapping[str, Any] | None:
    """Call the hooks of `on_stage` for one job, or for all jobs of a `stage_many`; returns the context to store.

    Raises:
        StageError: A hook has raised.
    """
    # What is no mapping is refused by the check of the column.
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
    """Instrumentation that measures each call that stages jobs."""

    def begin(self, name: str, queue: str, *, many: bool) -> Any:
        """Return what `end` gets, before the hooks of `on_stage` are called."""

    def end(self, begun: Any, ids: Sequence[int], error: BaseException | None) -> None:
        """Note that the jobs were inserted under these ids, or that the error was raised."""


producers: tuple[Producer, ...] = ()


def add_producer(producer: Producer) -> None:
    """Let an instrumentation measure calls that stage jobs."""
    global producers  # noqa: PLW0603
    producers = (*producers, producer)


def remove_producer(producer: Producer) -> None:
    """Let an instrumentation measure no more."""
    global producers  # noqa: PLW0603
    producers = tuple(each for each in producers if each is not producer)


class Production:
    """Block in which jobs are staged, as the producers measure it.

    Args:
        name: Name of the job.
        queue: Its queue.
        many: The block is a `stage_many`.

    Attributes:
        ids: Ids of the jobs that were staged, set in the block.
    """

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
    """Name a hook, for a message."""
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
    # A bound method is another object each time that it is looked up.
    return known == hook or getattr(known, "__wrapped__", None) is hook
