"""One attempt at a claimed job: find its function, read its arguments, call it within its time."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import asyncio
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from types import CoroutineType, FrameType
from typing import Any, NamedTuple

from drain.jobs import registry
from drain.jobs.options import JobOptions
from drain.tables.claims import Claim
from workers.context.current import CurrentJob, begin, end
from workers.errors import (
    ArgumentsDoNotFitError,
    Dead,
    Defer,
    JobTimeoutError,
    LeaseLostError,
    NotRegisteredError,
    TransactionError,
    checked,
)
from workers.execution.outcome import (
    FINISHED,
    Deferred,
    Failed,
    Finished,
    GaveUp,
    Interrupted,
    Lost,
    Outcome,
    Settled,
    Unreadable,
    describe,
)
from workers.lease.lease import AGAIN_SECONDS, Interrupt, Lease

_LEFT_OPEN = "the function returned while its transaction() was still open; what that wrote is rolled back"


# What comes from a jsonb has no space around it, which json.loads() would look for: 0.5 us instead of 1.4.
_read = json.JSONDecoder().raw_decode
# Without the conversion to an enum, which fails for a function, and takes a microsecond to do so.
# signal.getsignal() tries to make an enum of what it finds, which takes a microsecond and fails for a function.
_handler_of: Callable[[int], object] = _signal.getsignal
_SIGALRM = int(signal.SIGALRM)

Act = Callable[[Interrupt | None], None]
# What calls a function within a time: the time in seconds, why it may be over earlier, and what comes afterwards.
Within = Callable[[Act, float, Callable[[], Exception | None], Callable[[], None]], None]


def run(current: CurrentJob, within: Within | None = None) -> Outcome:
    """Call the function of a claimed job; whatever it raises becomes an outcome.

    Args:
        current: The job.
        within: What bounds the time of the call; `interruptible` by default.

    Raises:
        KeyboardInterrupt: As it came; the claim is left to run out.
    """
    lease = current._lease
    call = prepare(lease.claim)
    if not isinstance(call, Call):
        return call
    token = begin(current)
    pid = os.getpid()
    try:
        bounded = within or interruptible
        bounded(partial(_call, call, lease), lease.claim.timeout_seconds, lease.cause, lease.stop)
    except KeyboardInterrupt:
        raise
    # SystemExit and CancelledError too: the job has failed, and the worker goes on.
    except BaseException as error:  # noqa: BLE001
        leave_if_forked(pid, error)
        return concluded(current, outcome_of(error, call, stopped=lease.stopped))
    finally:
        end(token)
    leave_if_forked(pid)
    return concluded(current, FINISHED)


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """End this process if it is not the one that began the job, but a child that the job has forked.

    It would go on as a second worker, with the connections and the other jobs of the first.
    """
    if os.getpid() == pid:
        return
    code: object = 0
    if error is not None:
        code = error.code if isinstance(error, SystemExit) else 1
        if code is not None and not isinstance(code, int):
            with suppress(Exception):
                sys.stderr.write(f"{code}\n")
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


class Call(NamedTuple):
    """What is to be called."""

    job: registry.Job[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


def prepare(claim: Claim) -> Call | Failed | Unreadable:
    """Find the function of a claimed job and read its arguments; or say why that cannot be done."""
    job = registry.find(claim.job_name)
    if job is None:
        unknown = _not_registered(claim.job_name)
        return Failed(describe(unknown), cause=unknown)
    try:
        return Call(job, _read(claim.job_args)[0], _read(claim.job_kwargs)[0])
    except (ValueError, RecursionError) as error:
        return Unreadable(f"Python cannot read its arguments: {error}")


def concluded(current: CurrentJob, result: Outcome) -> Outcome:
    """What became of an attempt, in view of its transaction."""
    if current.finished:
        return Settled(result)
    if current.in_transaction and isinstance(result, Finished):
        return Failed(describe(TransactionError(_LEFT_OPEN)), registry.options(current.name))
    return result


def _call(call: Call, lease: Lease, interrupt: Interrupt | None) -> None:
    lease.start(interrupt)
    result = call.job.function(*call.args, **call.kwargs)
    # What isinstance() asks of a proxy may raise.
    if issubclass(type(result), CoroutineType):
        lease.coroutine = result
        asyncio.run(result)


def outcome_of(error: BaseException, call: Call, *, stopped: bool = False) -> Outcome:
    """What becomes of an attempt that has raised; `stopped` if its worker had interrupted it, since it stops."""
    # What isinstance() asks of an exception may raise.
    kind = type(error)
    options = call.job.job_options
    if kind is TypeError and _is_of_the_call(error):
        misfit = _misfit(call, error)
        return Failed(describe(misfit), options, misfit)
    if issubclass(kind, Defer):
        return _deferred(error, options)
    if issubclass(kind, Dead):
        return GaveUp(describe(error), error)
    if issubclass(kind, LeaseLostError):
        return Lost(describe(error), options, error)
    # Whatever the job makes of the interruption.
    if stopped and not issubclass(kind, JobTimeoutError):
        return Interrupted(describe(error), options, error)
    return Failed(describe(error), options, error)


def _deferred(error: Any, options: JobOptions) -> Outcome:
    try:
        return Deferred(checked(error.when))
    # A class of the job's own may have left `when` out, or made anything of it.
    except Exception as unusable:  # noqa: BLE001
        return Failed(describe(unusable), options, unusable)


def interruptible(
    act: Act,
    seconds: float,
    cause: Callable[[], Exception | None] = lambda: None,
    end: Callable[[], None] = lambda: None,
) -> None:
    """Call a function, and raise JobTimeoutError inside of it once `seconds` have passed.

    Works in the main thread, where RQ runs jobs. An alarm that is set already goes on afterwards.

    Args:
        act: Is given what raises in it; None in another thread, where nothing can be raised.
        seconds: From now.
        cause: What a SIGALRM that comes earlier is to raise, if anything.
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
        if raises:
            raise cause() or JobTimeoutError(f"it ran for longer than its timeout of {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, interrupt)
    began, outer = monotonic(), 0.0
    try:
        outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        # The first time is the alarm's, unless the job switches that off.
        act(Interrupt(interrupt, seconds + AGAIN_SECONDS))
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


class StandingAlarm:
    """As `interruptible`, for a process whose main thread does nothing but run jobs.

    The handler stays where it is, and no timer is set: the keeper's thread sends the signal when the time is over.
    Measured: 8 of the 15 microseconds that a job which does nothing cost the worker went into two handlers and two
    timers for each.
    """

    def __init__(self) -> None:
        self._cause: Callable[[], Exception | None] | None = None
        self._handler = self._interrupt

    def __call__(
        self,
        act: Act,
        seconds: float,
        cause: Callable[[], Exception | None],
        end: Callable[[], None],
    ) -> None:
        """Call `act`; see `interruptible`."""
        self._cause = cause
        try:
            act(Interrupt(self._handler, seconds))
        finally:
            # As in `interruptible`: an assignment is not interrupted.
            self._cause = None
            end()
            # It may have used the alarm for itself; what it has set is not to ring in somebody else's time.
            if _handler_of(_SIGALRM) is not self._handler:
                self.install()

    def install(self) -> None:
        """Put the handler in its place, and an alarm that somebody has left behind out of the world."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._handler)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        error = self._cause and self._cause()
        if error:
            raise error


def _is_of_the_call(error: BaseException) -> bool:
    """Whether it was raised before the function had begun."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_globals is globals()


def _misfit(call: Call, error: BaseException) -> BaseException:
    """The error in the words of the job, if it is that the arguments do not fit the function."""
    try:
        signature = inspect.signature(call.job.function)
    except ValueError:
        # Some functions that are written in C do not tell.
        return error
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as misfit:
        return ArgumentsDoNotFitError(
            f"the arguments do not fit {call.job.job_name}{signature}: {misfit}"
        ).with_traceback(None)
    return error


def _not_registered(name: str) -> NotRegisteredError:
    known = ", ".join(registry.names()) or "nothing"
    return NotRegisteredError(
        f"no function is registered as {name!r}; registered here: {known}; is its module in DRAIN_JOBS?"
    )
