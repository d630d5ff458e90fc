"""One attempt at a claimed job: read arguments, call the function within its time, conclude the outcome.

The job stops being interrupted before its exception is read, or an alarm could raise in the worker's own code.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import drain.workers.context.undoing  # noqa: F401  (registers our own job)
from drain.formatting import visible
from drain.jobs import registry
from drain.jobs.annotations import ArgumentsError
from drain.jobs.options import JobOptions
from drain.workers.context.current import Attempt, begin, current_attempt, end
from drain.workers.context.steps import find_forgotten, may_have_forgotten, warn_of_unused
from drain.workers.errors import (
    ArgumentsDoNotFitError,
    Dead,
    Defer,
    JobTimeoutError,
    LeaseLostError,
    NotRegisteredError,
    Parked,
    RateLimited,
    Retry,
    TransactionError,
    checked,
    checked_wait,
    failure_of,
)
from drain.workers.execution import calling
from drain.workers.execution.alarm import Alarm, interruptible
from drain.workers.execution.calling import LEFT_OPEN, Call
from drain.workers.execution.decision import DEAD, decide
from drain.workers.execution.forked import leave_if_forked
from drain.workers.execution.outcome import (
    FINISHED,
    AlreadyFinished,
    Deferred,
    Failed,
    Finished,
    GaveUp,
    Interrupted,
    Lost,
    Outcome,
    Slowed,
    Unreadable,
    Waiting,
    describe,
)

# Skips the search for surrounding space: 0.5 instead of 1.4 us.
_read = json.JSONDecoder().raw_decode


def run(attempt: Attempt, alarm: Alarm = interruptible) -> Outcome:
    """Call a job's function in this thread.

    Raises:
        KeyboardInterrupt: The claim is left to expire.
    """
    call = prepare(attempt)
    if not isinstance(call, Call):
        return call
    token = begin(attempt)
    pid = os.getpid()
    interruption = attempt.interruption
    try:
        alarm(
            partial(_call, call, attempt),
            attempt.claim.timeout_seconds,
            interruption.cause,
            interruption.stop,
        )
    except KeyboardInterrupt:
        raise
    # SystemExit and CancelledError too.
    except BaseException as error:  # noqa: BLE001
        leave_if_forked(pid, error)
        return concluded(attempt, outcome_of(error, call, stopped=interruption.stopped))
    finally:
        end(token)
    leave_if_forked(pid)
    if may_have_forgotten(attempt):
        find_forgotten(attempt)
    return concluded(attempt, FINISHED)


async def run_in_loop(attempt: Attempt) -> Outcome:
    """Await a job's function in the running loop."""
    call = prepare(attempt)
    if not isinstance(call, Call):
        return call
    begin(attempt)
    pid = os.getpid()
    interruption = attempt.interruption
    interruption.start(_canceler(), attempt.claim.timeout_seconds)
    try:
        await calling.wait(call, attempt)
    except BaseException as error:  # noqa: BLE001
        leave_if_forked(pid, error)
        cause = interruption.cause() if isinstance(error, asyncio.CancelledError) else None
        raised = cause.with_traceback(error.__traceback__) if cause else error
        result = outcome_of(raised, call, stopped=interruption.stopped)
    else:
        leave_if_forked(pid)
        result = FINISHED
    finally:
        interruption.stop()
    if result is FINISHED and may_have_forgotten(attempt):
        await asyncio.to_thread(find_forgotten, attempt)
    return concluded(attempt, result)


def _canceler() -> Callable[[], None]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def cancel() -> None:
        # The loop may have ended.
        with suppress(RuntimeError):
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)

    return cancel


def prepare(attempt: Attempt) -> Call | Failed | GaveUp | Unreadable:
    """Read the arguments, or return why the job cannot be called."""
    claim, job = attempt.claim, attempt.job
    if job is None:
        unknown = _not_registered(claim.job_name)
        return Failed(describe(unknown), cause=unknown)
    try:
        args, kwargs = _read(claim.job_args)[0], _read(claim.job_kwargs)[0]
    except (ValueError, RecursionError) as error:
        return Unreadable(f"Python cannot read its arguments: {error}")
    if job.signature.decodes:
        try:
            job.signature.decode(args, kwargs)
        except ArgumentsError as error:
            # Permanent.
            return GaveUp(describe(error), error)
    return Call(job, args, kwargs)


def concluded(attempt: Attempt, result: Outcome) -> Outcome:
    """Return the outcome after the job's transaction, if any."""
    # Ends progress reports.
    attempt.has_ended = True
    wait = None if attempt.steps is None or attempt.finished else attempt.steps.wait
    if wait is not None and isinstance(result, Finished):
        # The job caught it, as asyncio.gather(return_exceptions=True) does.
        return Waiting(wait.name, wait.event, wait.when)
    if attempt.steps is not None and (attempt.finished or isinstance(result, Finished)):
        warn_of_unused(attempt)
    if attempt.finished:
        return AlreadyFinished(_rest_of(attempt, result), is_durable=not attempt.groups_commit)
    if attempt.in_transaction and isinstance(result, Finished):
        return Failed(describe(TransactionError(LEFT_OPEN)), attempt.options)
    if attempt.result is not None and isinstance(result, Finished):
        return Finished(attempt.result)
    return result


def _rest_of(attempt: Attempt, result: Outcome) -> Outcome:
    return Finished(attempt.late_result) if isinstance(result, Finished) else result


def _call(call: Call, attempt: Attempt, interrupt: Callable[[], None] | None, after_seconds: float) -> None:
    attempt.interruption.start(interrupt, after_seconds)
    calling.call_here(call, attempt)


def outcome_of(  # noqa: PLR0911  (one return for each outcome)
    error: BaseException, call: Call, *, stopped: bool = False
) -> Outcome:
    """Return the outcome of a call that raised; `stopped` if interrupted by a stopping worker."""
    # isinstance() may run code of the exception.
    kind = type(error)
    options = call.job.job_options
    if kind is TypeError and _is_of_the_call(error):
        misfit = _misfit(call, error)
        return Failed(describe(misfit), options, misfit)
    if (wait := _wait_in(error)) is not None:
        return Waiting(wait.name, wait.event, wait.when)
    if issubclass(kind, (Defer, RateLimited)):
        return _deferred(error, options)
    if issubclass(kind, Dead):
        return GaveUp(describe(error), error)
    if issubclass(kind, LeaseLostError):
        return Lost(describe(error), options, error)
    # Any exception in response.
    if stopped and not issubclass(kind, JobTimeoutError):
        return Interrupted(describe(error), options, error)
    return _failed(error, options)


def _wait_in(error: BaseException) -> Parked | None:
    """Return the wait that ended the attempt, or the first of those in an asyncio.TaskGroup."""
    kind: type[BaseException] = type(error)
    if issubclass(kind, Parked):
        return error  # type: ignore[return-value]
    if not issubclass(kind, BaseExceptionGroup):
        return None
    waits = [_wait_in(each) for each in error.exceptions]  # type: ignore[attr-defined]
    return waits[0] if all(waits) else None


def is_last(error: BaseException) -> bool:
    """Return True if the running job is dead after this error."""
    attempt = current_attempt()
    assert attempt.job is not None  # noqa: S101  (its function is running)
    outcome = outcome_of(error, Call(attempt.job, [], {}), stopped=attempt.interruption.stopped)
    return decide(attempt.claim, outcome).word == DEAD


def _failed(error: Any, options: JobOptions) -> Failed | GaveUp:
    if not issubclass(type(error), Retry):
        described, rule = describe(error), options.rule_against(type(error))
        return Failed(described, options, error) if rule is None else GaveUp(described, error, rule)
    failure = failure_of(error)
    try:
        after, reason = checked_wait(error.after), str(error.reason)
        # An error never raised gets the place of the `Retry`.
        failure.__traceback__ = failure.__traceback__ or error.__traceback__
    except Exception as unusable:  # noqa: BLE001
        return Failed(describe(unusable), options, unusable)
    return Failed(describe(failure, "" if failure is error else reason), options, failure, after)


def _deferred(error: Any, options: JobOptions) -> Outcome:
    try:
        if issubclass(type(error), RateLimited):
            return Slowed(checked(error.retry_after, "RateLimited"))
        return Deferred(checked(error.when))
    # A subclass may lack the attribute, or set it to anything.
    except Exception as unusable:  # noqa: BLE001
        return Failed(describe(unusable), options, unusable)


def _is_of_the_call(error: BaseException) -> bool:
    """Return True if raised before the function began."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_globals is vars(calling)


def _misfit(call: Call, error: BaseException) -> BaseException:
    try:
        signature = inspect.signature(call.job.function)
    except ValueError:
        # Some C functions have no signature.
        return error
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as misfit:
        return ArgumentsDoNotFitError(
            f"the arguments do not fit {call.job.job_name}{signature}: {misfit}"
        ).with_traceback(None)
    return error


def _not_registered(name: str) -> NotRegisteredError:
    known = ", ".join(map(visible, registry.names())) or "nothing"
    return NotRegisteredError(
        f"no function is registered as {name!r}; registered here: {known}; is its module in DRAIN_JOBS?"
    )
