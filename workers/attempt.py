"""One attempt at a claimed job: find its function, read its arguments, call it within its time."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from types import CoroutineType, FrameType
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
    checked,
)
from workers.lease import Handler, Lease
from workers.outcome import Deferred, Failed, Finished, GaveUp, Lost, Outcome, Unreadable, describe


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
        call = partial(_call, job.function, args, kwargs, lease)
        interruptible(call, claim.timeout_seconds, lambda: lease.lost, lease.stop)
    except KeyboardInterrupt:
        raise
    # SystemExit and CancelledError too: the job has failed, and the worker goes on.
    except BaseException as error:  # noqa: BLE001
        return _outcome_of(error, job.job_options)
    return Finished()


def _call(
    function: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    lease: Lease,
    handler: Handler | None,
) -> None:
    lease.start(handler)
    result = function(*args, **kwargs)
    # What isinstance() asks of a proxy may raise.
    if issubclass(type(result), CoroutineType):
        lease.coroutine = result
        asyncio.run(result)


def _outcome_of(error: BaseException, options: JobOptions) -> Outcome:
    # What isinstance() asks of an exception may raise.
    kind = type(error)
    if issubclass(kind, Defer):
        return _deferred(error, options)
    if issubclass(kind, Dead):
        return GaveUp(describe(error))
    if issubclass(kind, LeaseLostError):
        return Lost(describe(error), options)
    return Failed(describe(error), options)


def _deferred(error: Any, options: JobOptions) -> Outcome:
    try:
        return Deferred(checked(error.when))
    # A class of the job's own may have left `when` out, or made anything of it.
    except Exception as unusable:  # noqa: BLE001
        return Failed(describe(unusable), options)


def interruptible(
    act: Callable[[Handler | None], None],
    seconds: float,
    lost: Callable[[], bool] = lambda: False,
    end: Callable[[], None] = lambda: None,
) -> None:
    """Call a function, and raise JobTimeoutError inside of it once `seconds` have passed.

    Works in the main thread, where RQ runs jobs. An alarm that is set already goes on afterwards.

    Args:
        act: Is given the handler of SIGALRM; None in another thread, where nothing can be raised.
        seconds: From now.
        lost: Whether a SIGALRM that comes earlier is to raise LeaseLostError.
        end: Called at the end: when a SIGALRM raises nothing any more, and before those that come later are
            for somebody else.
    """
    if threading.current_thread() is not threading.main_thread():
        try:
            act(None)
        finally:
            end()
        return
    raises = True

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if raises and lost():
            raise LeaseLostError("somebody else has claimed the job; this attempt can finish nothing")
        if raises:
            raise JobTimeoutError(f"it ran for longer than its timeout of {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, interrupt)
    began, outer = monotonic(), 0.0
    try:
        outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        act(interrupt)
    finally:
        # A signal raises where a call begins or returns, even in the first line of a context manager's end.
        # An assignment it does not interrupt.
        raises = False
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
