"""Steps of a job: each keeps its result, and later attempts leave it out.

The result is recorded under the fence of the claim, as the last statement of the step's own transaction, so an attempt
that has lost its job records nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec

import psycopg

from drain.errors import StageError
from drain.failpoints import FailurePoint, failpoint
from drain.formatting import visible
from drain.jobs.values import as_key
from drain.tables import steps
from drain.tables.steps import Step
from drain.workers.context.connection_cache import bare, driver_of
from drain.workers.context.current import Attempt, current_attempt
from drain.workers.context.finish_guard import recording
from drain.workers.context.loading import load
from drain.workers.context.written_result import written
from drain.workers.errors import StepError, TransactionError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)
P = ParamSpec("P")

# Between attempts to record a step while PostgreSQL is unavailable.
PAUSE_SECONDS = 0.25


def step(name: str, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Call a function once, and keep its result for later attempts of the job.

    For effects outside the database, such as a payment: a worker that dies between the call and the commit of its
    result repeats the call in the next attempt. Pass an idempotency key, such as `current_job().key` and the name.

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
        NoCurrentJobError: No job is running here.
        TransactionError: The job's `transaction()` is open or has committed.
    """
    attempt = current_attempt()
    if (kept := find(attempt, name)) is None:
        with begun(attempt, name) as ran:
            kept = ran(function(*args, **kwargs))
            _record(attempt, kept)
    return json.loads(kept.result)


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

    attempt = current_attempt()
    if (kept := find(attempt, name)) is None:
        with begun(attempt, name) as ran, session_of(attempt.database_url) as session:
            value = function(session, *args, **kwargs)
            session.flush()
            kept = ran(value)
            with recording(attempt, driver_of(session.connection()), kept):
                session.commit_with_the_finish()
    return json.loads(kept.result)


def psycopg_step_transaction(
    name: str,
    function: Callable[Concatenate[psycopg.Connection[Any], P], Any],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Any:
    """As `step_transaction`, with a psycopg connection, which must not be kept."""
    attempt = current_attempt()
    if (kept := find(attempt, name)) is None:
        with begun(attempt, name) as ran, bare(attempt.database_url) as connection:
            kept = ran(function(connection, *args, **kwargs))
            with recording(attempt, connection, kept):
                connection.commit()
    return json.loads(kept.result)


class Steps(NamedTuple):
    """Steps of one attempt: results of earlier attempts, and names used so far."""

    kept: dict[str, str]
    used: set[str]


def find(attempt: Attempt, name: str) -> Step | None:
    """Return the step if an earlier attempt has recorded it; note that it is used."""
    checked(attempt, name)
    if attempt.steps is None:
        attempt.steps = Steps(_read(attempt) if may_have_some(attempt) else {}, set())
    return taken(attempt.steps, name)


def checked(attempt: Attempt, name: str) -> None:
    """Raise StepError if the name is not valid, and TransactionError if the job's transaction leaves no room."""
    try:
        as_key("the name of a step", name)
    except StageError as error:
        raise StepError(str(error)) from None
    if name is None:
        raise StepError("a step needs a name")
    if attempt.finished or attempt.in_transaction:
        raise TransactionError(
            f"step {name!r} of job {attempt.claim.id} comes too late: the transaction that finishes the job has begun"
        )


def may_have_some(attempt: Attempt) -> bool:
    """Return False at the first claim, which finds no steps."""
    return attempt.claim.fencing_token > 1


def taken(steps: Steps, name: str) -> Step | None:
    """Return a recorded step, or raise StepError if its name is used twice."""
    if name in steps.used:
        raise StepError(
            f"two steps of a job are named {name!r}: give each its own name, such as {name + ' 2'!r}"
        )
    steps.used.add(name)
    return Step(name, steps.kept[name], 0.0) if name in steps.kept else None


@contextmanager
def begun(attempt: Attempt, name: str) -> Iterator[Callable[[Any], Step]]:
    """Yield a function from the step's value to the step to record; if the block raises, the job may try again."""
    began = monotonic()

    def ran(value: Any) -> Step:
        done = Step(name, written(attempt.claim.id, value, name), monotonic() - began)
        failpoint(FailurePoint.STEP_RAN)
        return done

    try:
        yield ran
    except BaseException:
        if attempt.steps is not None:
            attempt.steps.used.discard(name)
        raise
    failpoint(FailurePoint.STEP_RECORDED)


def warn_of_unused(attempt: Attempt) -> None:
    """Warn if a job finishes without steps that earlier attempts recorded."""
    if attempt.steps is None or not (unused := attempt.steps.kept.keys() - attempt.steps.used):
        return
    names = ", ".join(repr(visible(name)) for name in sorted(unused))
    log.warning(
        "job %d (%s) finished without its recorded steps %s: if the code renamed them, they ran twice",
        attempt.claim.id,
        visible(attempt.claim.job_name),
        names,
        extra={"event": "steps_unused", "job_id": attempt.claim.id},
    )


def _read(attempt: Attempt) -> dict[str, str]:
    with bare(attempt.database_url) as connection:
        kept = steps.read(connection, attempt.claim)
        connection.rollback()
    return kept


def _record(attempt: Attempt, done: Step) -> None:
    is_in_doubt = False
    while True:
        try:
            with bare(attempt.database_url) as connection, recording(attempt, connection, done):
                connection.commit()
        except psycopg.errors.UniqueViolation:
            # The answer to an earlier commit was lost.
            if not is_in_doubt:
                raise
        except psycopg.OperationalError:
            if attempt.lease.seconds_left() < PAUSE_SECONDS:
                raise
            is_in_doubt = True
            sleep(PAUSE_SECONDS)
            continue
        return
