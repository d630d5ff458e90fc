"""Steps of a job: each keeps its result, and later attempts skip it.

The result is recorded under the fence of the claim, as the last statement of the step's own transaction, so an attempt
that has lost its job records nothing.
"""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import psycopg

from drain.database import postgres
from drain.errors import StageError, UnavailableError
from drain.failpoints import FailurePoint, failpoint
from drain.formatting import duration, visible
from drain.jobs.options import SHARED
from drain.jobs.values import as_name
from drain.tables import steps
from drain.tables.steps import Recorded, Step
from drain.workers.context.connection_cache import bare, driver_of
from drain.workers.context.current import Attempt, current_attempt
from drain.workers.context.finish_guard import recording
from drain.workers.context.lent_connections import lender
from drain.workers.context.loading import load
from drain.workers.context.recorded_steps import Steps, fitting
from drain.workers.context.step_options import retried, undo_of, was, with_options
from drain.workers.context.written_result import written
from drain.workers.errors import StepError, TransactionError, UnfitResultError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)
P = ParamSpec("P")

# Between attempts to record a step while PostgreSQL is unavailable.
PAUSE_SECONDS = 0.25


@with_options
def step(name: str, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Call a function once, and keep its result for later attempts of the job.

    For effects outside the database, such as a payment. If the worker dies between the call and the commit of its
    result, the next attempt calls again: pass an idempotency key, such as `current_job().key` and the name.

    `step.options(retries=3)("charge", charge, 42)` calls it again within the attempt if it raises.

    Args:
        name: Unique within the job, and the same in each attempt; up to 255 characters.
        function: Returns numbers, strings, lists and objects, up to 64 KiB of JSON.

    Returns:
        What the function returned, or returned in an earlier attempt, after a round trip through JSON.

    Raises:
        StepError: The name is not valid, or already used in this attempt. Kills the job unless caught.
        UnfitResultError: The result is not JSON, or too large. Kills the job unless caught.
        LeaseLostError: The job was claimed elsewhere; nothing is recorded.
        JobCancelledError: The job was cancelled; nothing is recorded.
        UnavailableError: PostgreSQL stayed unavailable until the lease ended.
        NoCurrentJobError: No job is running here.
        TransactionError: The job's `transaction()` is open or has committed, or the job has ended.
    """
    attempt, name = current_attempt(), checked(name)
    if (kept := find(attempt, name, function)) is None:
        with begun(attempt, name, function) as ran:
            kept = ran(retried(attempt, name, function, partial(function, *args, **kwargs)))
            _record(attempt, kept)
    return json.loads(kept.result)


@with_options
def step_transaction(
    name: str, function: Callable[Concatenate[Session, P], Any], /, *args: P.args, **kwargs: P.kwargs
) -> Any:
    """Call a function with a session whose writes commit together with the step's result, exactly once.

    Unlike `transaction()`, it leaves the job running.

    Args:
        name: As for `step`.
        function: Called with a SQLAlchemy session on DRAIN_DATABASE_URL, also for `drain.stage`, then `args`. Must not
            commit.

    Returns:
        As `step`.

    Raises:
        StepError, UnfitResultError, LeaseLostError, JobCancelledError, NoCurrentJobError: As `step`; all is rolled
            back.
        TransactionError: As `step`, or the function would commit on its own.
    """
    load("drain.workers.context.session")
    from drain.workers.context.session import session_of

    attempt, name = current_attempt(), checked(name)
    if (kept := find(attempt, name, function)) is None:
        with begun(attempt, name, function) as ran:

            def write() -> Step:
                with session_of(attempt.database_url) as session:
                    value = function(session, *args, **kwargs)
                    session.flush()
                    done = ran(value)
                    with recording(attempt, driver_of(session.connection()), done):
                        session.commit_with_the_finish()
                return done

            kept = retried(attempt, name, function, write)
    return json.loads(kept.result)


@with_options
def psycopg_step_transaction(
    name: str,
    function: Callable[Concatenate[psycopg.Connection[Any], P], Any],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Any:
    """As `step_transaction`, with a psycopg connection, which must not be kept."""
    attempt, name = current_attempt(), checked(name)
    if (kept := find(attempt, name, function)) is None:
        with begun(attempt, name, function) as ran:

            def write() -> Step:
                with bare(attempt.database_url) as connection:
                    done = ran(function(connection, *args, **kwargs))
                    with recording(attempt, connection, done):
                        connection.commit()
                return done

            kept = retried(attempt, name, function, write)
    return json.loads(kept.result)


_creating = threading.Lock()


def checked(name: str) -> str:
    """Return the plain string of a step's name, within that of the undo that calls it, or raise StepError."""
    try:
        plain = as_name("the name of a step", name)
    except StageError as error:
        raise StepError(str(error)) from None
    attempt = current_attempt()
    for undo in attempt.undoes:
        if attempt.steps is not None and undo in attempt.steps.running:
            # Two undos may have steps with the same name.
            return fitting(f"{undo}: {plain}")
    return plain


def steps_of(attempt: Attempt, name: str) -> Steps:
    """Return the attempt's steps; raise TransactionError if the job has ended, or its transaction leaves no room."""
    _refuse_late(attempt, name)
    with _creating:
        if attempt.steps is None:
            attempt.steps = Steps()
        return attempt.steps


def _refuse_late(attempt: Attempt, name: str) -> None:
    if attempt.options.commit == SHARED:
        raise StepError(
            f'job {attempt.claim.id} has commit="shared", so it cannot have step {name!r}: '
            "steps and waits need a transaction of their own"
        )
    if attempt.finished or attempt.in_transaction or attempt.has_ended:
        raise TransactionError(
            f"step {name!r} of job {attempt.claim.id} comes too late: steps must come before the job's transaction(), "
            "and before its end"
        )


def may_have_some(attempt: Attempt) -> bool:
    """Return False at the first claim, which finds no steps, except in the rehearsal of a job that has ended."""
    return attempt.claim.fencing_token > 1 or lender.get() is not None


def find(attempt: Attempt, name: str, function: Callable[..., Any] | None = None) -> Step | None:
    """Return the step if it has been recorded; note that its name is used."""
    steps = steps_of(attempt, name)
    if steps.needs_reading(name, may_have_some=may_have_some(attempt)):
        steps.kept = _read(attempt, waits=bool(steps.doubtful))
    return steps.take(name, was(function))


@contextmanager
def begun(
    attempt: Attempt, name: str, function: Callable[..., Any], **named: str
) -> Iterator[Callable[[Any], Step]]:
    """Yield a function from the step's value to the step to record; if the block raises, the job may try again."""
    began = monotonic()
    steps = attempt.steps
    assert steps is not None  # noqa: S101  (its name is used)
    steps.running.add(name)

    def ran(value: Any) -> Step:
        if inspect.iscoroutine(value):
            value.close()
            raise StepError(
                f"the function of step {name!r} is `async def`: await async_step() or its transactions"
            )
        result, undo = written(attempt.claim.id, value, name), undo_of(function, named)
        done = Step(name, result, monotonic() - began, undo, attempt.undoes.get(name))
        _refuse_late(attempt, name)
        failpoint(FailurePoint.STEP_RAN)
        # From here on it may be recorded, even if the answer is lost.
        steps.doubtful.add(name)
        return done

    try:
        yield ran
    except BaseException:
        steps.used.discard(name)
        raise
    finally:
        steps.running.discard(name)
    steps.doubtful.discard(name)
    failpoint(FailurePoint.STEP_RECORDED)


def may_have_forgotten(attempt: Attempt) -> bool:
    """Return True if a job that calls no steps may have called some in an earlier attempt, with other code."""
    return attempt.steps is None and attempt.claim.fencing_token > 1 and lender.get() is None


def find_forgotten(attempt: Attempt) -> None:
    """Read the steps that earlier attempts recorded, for `warn_of_unused`; do nothing if PostgreSQL is unavailable."""
    with suppress(psycopg.Error, UnavailableError):
        if kept := _read(attempt, waits=False):
            attempt.steps = Steps(kept)


def warn_of_unused(attempt: Attempt) -> None:
    """Warn if a job finishes without steps that earlier attempts recorded."""
    steps = attempt.steps
    if steps is None or not steps.kept or not (unused := steps.kept.keys() - steps.used):
        return
    names = ", ".join(
        f"{visible(name)!r} ({duration(steps.kept[name].seconds_ago)} old)" for name in sorted(unused)
    )
    log.warning(
        "job %d (%s) finished without its recorded steps %s: if the code renamed them, they ran again; "
        'options(was="the old name") prevents that',
        attempt.claim.id,
        visible(attempt.claim.job_name),
        names,
        extra={"event": "steps_unused", "job_id": attempt.claim.id},
    )


def _read(attempt: Attempt, *, waits: bool) -> dict[str, Recorded]:
    with bare(attempt.database_url) as connection:
        kept = steps.read(connection, attempt.claim, waits=waits)
        connection.rollback()
    return kept


def _record(attempt: Attempt, done: Step) -> None:
    is_in_doubt = False
    while True:
        try:
            with (
                postgres.reachable(attempt.database_url),
                bare(attempt.database_url) as connection,
                recording(attempt, connection, done),
            ):
                connection.commit()
        except psycopg.errors.UniqueViolation:
            # The answer to an earlier commit was lost.
            if not is_in_doubt:
                raise
        except psycopg.DataError as error:
            raise unfit(attempt, done, error) from None
        except UnavailableError:
            if attempt.lease.seconds_left() < PAUSE_SECONDS:
                raise
            is_in_doubt = True
            sleep(PAUSE_SECONDS)
            continue
        return


def unfit(attempt: Attempt, done: Step, error: psycopg.DataError) -> UnfitResultError:
    """Return the error of a result with characters that the database cannot store."""
    reason = str(error).partition("\n")[0]
    return UnfitResultError(f"step {done.name!a} of job {attempt.claim.id} cannot be stored: {reason}")
