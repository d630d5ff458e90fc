"""One attempt at a claimed job: find its function, read its arguments, call it within its time."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import CoroutineType
from typing import Any

from drain.job import JobOptions
from drain.transitions.inflight import Claim
from workers import registry
from workers.errors import (
    ArgumentsDoNotFitError,
    Dead,
    Defer,
    JobTimeoutError,
    LeaseLostError,
    NotRegisteredError,
)
from workers.lease import Lease
from workers.outcome import Deferred, Failed, Finished, GaveUp, Lost, Outcome, Unreadable, describe

_AGAIN_SECONDS = 10.0


def run(claim: Claim, lease: Lease) -> Outcome:
    """Call the function of a claimed job; whatever it raises becomes an outcome.

    The lease is extended while the function runs, and no longer.

    Raises:
        KeyboardInterrupt: As it came; the claim is left to run out.
    """
    job = registry.find(claim.job_name)
    if job is None:
        return Failed(describe(_not_registered(claim.job_name)))
    try:
        args, kwargs = json.loads(claim.job_args), json.loads(claim.job_kwargs)
    except (ValueError, RecursionError) as error:
        return Unreadable(f"Python cannot read its arguments: {error}")
    try:
        _check_arguments(job, args, kwargs)
        with interruptible(claim.timeout_seconds, lambda: lease.lost, lease.stop):
            lease.start()
            _call(job.function, args, kwargs, lease)
    except KeyboardInterrupt:
        raise
    # SystemExit and CancelledError too: the job has failed, and the worker goes on.
    except BaseException as error:  # noqa: BLE001
        return _outcome_of(error, job.job_options)
    return Finished()


def _call(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], lease: Lease) -> None:
    result = function(*args, **kwargs)
    # What isinstance() asks of a proxy may raise.
    if issubclass(type(result), CoroutineType):
        lease.coroutine = result
        asyncio.run(result)


def _outcome_of(error: BaseException, options: JobOptions) -> Outcome:
    if isinstance(error, Defer):
        return Deferred(error.when)
    if isinstance(error, Dead):
        return GaveUp(describe(error))
    if isinstance(error, LeaseLostError):
        return Lost(describe(error), options)
    return Failed(describe(error), options)


@contextmanager
def interruptible(
    seconds: float, lost: Callable[[], bool] = lambda: False, end: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Raise JobTimeoutError inside of the block once `seconds` have passed, and again should it go on.

    Works in the main thread, where RQ runs jobs. An alarm that is set already goes on afterwards.

    Args:
        seconds: From now.
        lost: Whether a SIGALRM that comes earlier is to raise LeaseLostError.
        end: Called at the end of the block: when a SIGALRM raises nothing any more, and before those that
            come later are for somebody else.
    """
    if threading.current_thread() is not threading.main_thread():
        try:
            yield
        finally:
            end()
        return
    running = True

    def interrupt(_signal: int, _frame: object) -> None:
        if running and lost():
            raise LeaseLostError("somebody else has claimed the job; this attempt can finish nothing")
        if running:
            raise JobTimeoutError(f"it ran for longer than its timeout of {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, interrupt)
    began = monotonic()
    # One exception may not be enough: an event loop logs what is raised inside of its callbacks, and goes on.
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        try:
            yield
        finally:
            running = False
    finally:
        # Twice, since the first time is the last moment at which a signal can raise.
        running = False
        try:
            end()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if outer:
                signal.setitimer(signal.ITIMER_REAL, max(0.001, outer - (monotonic() - began)))


def _check_arguments(job: registry.Job[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(job.function)
    except ValueError:
        # Some functions that are written in C do not tell; calling them will.
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentsDoNotFitError(f"the arguments do not fit {job.job_name}{signature}: {error}") from None


def _not_registered(name: str) -> NotRegisteredError:
    known = ", ".join(registry.names()) or "nothing"
    return NotRegisteredError(
        f"no function is registered as {name!r}; registered here: {known}; is its module in DRAIN_JOBS?"
    )
