"""Rules of a job's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from drain.jobs.options import SHARED
from drain.tables.steps import Step
from drain.workers.context.current import Attempt
from drain.workers.errors import JobCancelledError, LeaseLostError, TransactionError


class CanFinish(Protocol):
    """Connection whose commit finishes the attempt in `finishing`, or records its step; see `GuardedConnection`."""

    finishing: Attempt | None
    step: Step | None


@contextmanager
def only_one(attempt: Attempt, *, may_share: bool = False) -> Iterator[None]:
    """Allow one transaction per attempt, or raise TransactionError."""
    if attempt.options.commit == SHARED and not may_share:
        raise TransactionError(
            f'job {attempt.claim.id} has commit="shared": use transaction() or psycopg_transaction()'
        )
    if attempt.finished or attempt.in_transaction:
        raise TransactionError(
            f"job {attempt.claim.id} already has its transaction; a job has only one, which finishes it"
        )
    if attempt.steps is not None and attempt.steps.running:
        raise TransactionError(
            f"job {attempt.claim.id} is running step {min(attempt.steps.running)!r}: "
            "begin the job's transaction after its steps"
        )
    attempt.in_transaction = True
    never_ended = False
    try:
        yield
    except GeneratorExit:
        # Its writes are lost, so the job must not finish.
        never_ended = True
        raise
    finally:
        attempt.in_transaction = never_ended
        # A shared transaction commits later.
        attempt.lease.ending = attempt.finished and attempt.shared is None


@contextmanager
def finishing(attempt: Attempt, connection: CanFinish) -> Iterator[None]:
    """Let the block's commit finish the job; raise TransactionError without one."""
    # From here on a refused heartbeat may be due to our own finish.
    attempt.lease.ending = True
    connection.finishing = attempt
    began = monotonic()
    try:
        yield
    finally:
        connection.finishing = None
        attempt.commit_seconds = monotonic() - began
    if not attempt.finished:
        raise nothing_committed(attempt)


@contextmanager
def recording(attempt: Attempt, connection: CanFinish, step: Step) -> Iterator[None]:
    """Let the block's commit record the step; raise TransactionError without one."""
    connection.finishing, connection.step = attempt, step
    try:
        yield
        if connection.step is not None:
            raise nothing_committed(attempt)
    finally:
        connection.finishing = connection.step = None


def nothing_committed(attempt: Attempt) -> TransactionError:
    """Return the error of a missing commit."""
    return TransactionError(f"nothing in the transaction of job {attempt.claim.id} was committed")


def refusal(
    attempt: Attempt, *, is_finished: bool = False, is_cancelled: bool, step: Step | None = None
) -> Exception:
    """Return why a finish or a step was refused; note whether the job is finished anyway."""
    job_id = attempt.claim.id
    lost = f"step {step.name!r} is not recorded" if step else "its writes are rolled back"
    if is_finished:
        attempt.finished = True
        return TransactionError(
            f"job {job_id} was finished by its first transaction(), whose commit got no answer; "
            "this one is rolled back"
        )
    if is_cancelled:
        return JobCancelledError(f"job {job_id} was cancelled; {lost}")
    return LeaseLostError(f"job {job_id} has been claimed by another worker; {lost}")


def too_early() -> TransactionError:
    """Return the error of a job that begins or commits on its own."""
    return TransactionError(
        "the transaction of a job begins and commits together with the job's finish; use begin_nested(), or "
        "psycopg's transaction(), for savepoints, and a session of your own for what must be committed earlier"
    )


def note_heartbeat(error: BaseException) -> None:
    """Add the usual reason for a serialization error."""
    error.add_note("A heartbeat has extended the job's lease since the transaction took its snapshot.")
