"""Options of steps: retries within the attempt, timeouts, undos and former names."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any, Generic, NamedTuple, TypeVar, cast

from drain.errors import StageError
from drain.formatting import duration, visible
from drain.jobs.options import backoff_seconds, dotted_name
from drain.jobs.values import as_key
from drain.workers.context.current import Attempt
from drain.workers.context.lent_connections import lender
from drain.workers.errors import INTERRUPTIONS, Defer, RateLimited, Retry, TransactionError

log = logging.getLogger(__name__)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)

_MOST_RETRIES = 100
_LONGEST_WAIT_SECONDS = 60.0
_LONGEST_TIMEOUT_SECONDS = 24 * 3600.0
# Between checks for an interruption: outside the main thread, nothing ends a sleep.
_NAP_SECONDS = 0.1
# They decide the job's outcome, or no retry can help.
_FINAL = (*INTERRUPTIONS, Defer, RateLimited, Retry, TransactionError)


class WithOptions(Generic[F_co]):
    """Type of a step function with `options`; not a protocol, which Pyright could not call."""

    @property
    def __call__(self) -> F_co:
        """The step function."""
        raise NotImplementedError

    def options(
        self,
        *,
        retries: int = 0,
        backoff: float | timedelta = 1.0,
        timeout: float | timedelta | None = None,
        undo: Callable[..., Any] | None = None,
        was: str | None = None,
    ) -> F_co:
        """Return the step function with these options.

        Args:
            retries: Further calls after an error, within the attempt, up to 100.
            backoff: Delay before the first retry. Doubles with each one, up to a minute, with jitter.
            timeout: Time limit of each call, up to a day; async steps only.
            undo: Module-level function to call with the step's result if the job dies. It runs as a step of the same
                kind: if the step's function gets a session or connection, so does the undo, as its first argument.
            was: The step's name in earlier versions of the code. Jobs that have recorded it skip the step.

        Raises:
            ValueError: Invalid option.
        """
        raise NotImplementedError


class _Tried(NamedTuple):
    """Function of a step with options."""

    function: Callable[..., Any]
    retries: int
    backoff_seconds: float
    undo: dict[str, str]
    was: str | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def with_options(step: F) -> WithOptions[F]:
    """Give a step function its `options`."""

    def options(
        *,
        retries: int = 0,
        backoff: float | timedelta = 1.0,
        timeout: float | timedelta | None = None,
        undo: Callable[..., Any] | None = None,
        was: str | None = None,
    ) -> Any:
        if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= _MOST_RETRIES:
            raise ValueError(
                f"retries of a step must be a whole number up to {_MOST_RETRIES}, not {retries!r:.100}"
            )
        wait = _seconds("backoff", backoff, _LONGEST_WAIT_SECONDS)
        limit = None if timeout is None else _seconds("timeout", timeout, _LONGEST_TIMEOUT_SECONDS)
        if limit == 0:
            raise ValueError("timeout of a step must be above 0")
        if limit is not None and not inspect.iscoroutinefunction(step):
            raise ValueError("only an async step can have a timeout: threads cannot be interrupted in time")

        try:
            how, old_name = {} if undo is None else _undo(step, undo), as_key("was", was)
        except (StageError, ImportError) as error:
            raise ValueError(f"option of a step: {error}") from None

        def call(name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            timed = function if limit is None else partial(_timed, name, limit, function)
            return step(name, _Tried(timed, retries, wait, how, old_name), *args, **kwargs)

        return call

    cast(Any, step).options = options
    return cast(WithOptions[F], step)


def _undo(step: Callable[..., Any], undo: Callable[..., Any]) -> dict[str, str]:
    if inspect.iscoroutinefunction(undo) and not inspect.iscoroutinefunction(step):
        raise ValueError("only an async step can have an `async def` as its undo")
    path = dotted_name(undo)
    if not callable(imported(path)):
        raise StageError(f"{path} has no name that a worker could import; use a module-level function")
    return {"call": path, "as": step.__name__}


def imported(path: str) -> Any:
    """Import an object by its dotted name; None if its module lacks it."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name, None)


def undo_of(function: Callable[..., Any], named: Mapping[str, str]) -> str | None:
    """Return the undo of a step with this function as JSON, or None."""
    undo = function.undo if isinstance(function, _Tried) else None
    return json.dumps({**undo, **named}) if undo else None


def was(function: Callable[..., Any] | None) -> str | None:
    """Return the former name of a step with this function."""
    return function.was if isinstance(function, _Tried) else None


async def _timed(
    name: str, seconds: float, function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    try:
        async with asyncio.timeout(seconds) as scope:
            value = function(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise TimeoutError(f"step {str(name)!r} ran for longer than its timeout of {seconds:g} s") from error


def retried(attempt: Attempt, name: str, function: Callable[..., Any], call: Callable[[], T]) -> T:
    """Call for a step, again after errors as the options of its function allow."""
    if not isinstance(function, _Tried):
        return call()
    tries = _Tries(attempt, name, function)
    while True:
        try:
            return call()
        except Exception as error:
            if not tries.may_go_on(error):
                raise
            while seconds := tries.nap_seconds():
                sleep(seconds)


async def async_retried(
    attempt: Attempt, name: str, function: Callable[..., Any], call: Callable[[], Awaitable[T]]
) -> T:
    """As `retried`, without blocking the event loop."""
    if not isinstance(function, _Tried):
        return await call()
    tries = _Tries(attempt, name, function)
    while True:
        try:
            return await call()
        except Exception as error:
            if not tries.may_go_on(error):
                raise
            while seconds := tries.nap_seconds():
                await asyncio.sleep(seconds)


class _Tries:
    """Failed tries of one step, and the wait after the last."""

    def __init__(self, attempt: Attempt, name: str, tried: _Tried) -> None:
        self._attempt, self._name, self._tried = attempt, name, tried
        self._failures, self._until, self._pid = 0, 0.0, os.getpid()

    def may_go_on(self, error: Exception) -> bool:
        """Return True after an error that allows a retry, and log it."""
        attempt, kind, retries = self._attempt, type(error), self._tried.retries
        self._failures += 1
        if (
            self._failures > retries
            or issubclass(kind, _FINAL)
            or attempt.options.rule_against(kind) is not None
            # Its commit may have succeeded; or this is a child that the step forked.
            or (attempt.steps is not None and self._name in attempt.steps.doubtful)
            or os.getpid() != self._pid
        ):
            return False
        wait = backoff_seconds(self._tried.backoff_seconds, _LONGEST_WAIT_SECONDS, self._failures)
        # Tests and rehearsals do not wait.
        self._until = monotonic() + wait if lender.get() is None else 0.0
        claim, error_type = attempt.claim, visible(kind.__qualname__)
        fields = {"job_id": claim.id, "step": self._name, "attempt": claim.attempts, "error": error_type}
        log.warning(
            "job %d (%s): step %r failed in attempt %d; retry %d of %d in %s: %s",
            *(claim.id, visible(claim.job_name), visible(self._name), claim.attempts),
            *(self._failures, retries, duration(wait), error_type),
            extra={"event": "step_retried", **fields},
        )
        return True

    def nap_seconds(self) -> float:
        """Return the next part of the wait, 0 at its end; raise if the job is interrupted."""
        if cause := self._attempt.interruption.cause():
            raise cause
        return max(0.0, min(_NAP_SECONDS, self._until - monotonic()))


def _seconds(option: str, value: float | timedelta, longest: float) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= longest:
        raise ValueError(
            f"{option} of a step must be a timedelta or seconds, up to {longest:g}, not {value!r:.100}"
        )
    return float(seconds)
