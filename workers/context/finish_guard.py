"""Rules of every kind of a job's transaction: there is one, it finishes the job, and it says why it could not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from drain.workers.context.current import Attempt
from drain.workers.errors import JobCancelledError, LeaseLostError, TransactionError


class CanFinish(Protocol):
    """A connection that finishes a job with its commit.

    Attributes:
        finishing: The attempt whose job is finished by the next commit; None while no commit is allowed.
    """

    finishing: Attempt | None


@contextmanager
def only_one(attempt: Attempt) -> Iterator[None]:
    """Let the block be the one transaction of the attempt.

    Raises:
        TransactionError: The job has, or had, its transaction already.
    """
    if attempt.finished or attempt.in_transaction:
        raise TransactionError(
            f"job {attempt.claim.id} has its transaction already; a job has one, since it finishes it"
        )
    attempt.in_transaction = True
    never_ended = False
    try:
        yield
    except GeneratorExit:
        # The block was thrown away before its end: what it wrote is lost, so the job must not finish.
        never_ended = True
        raise
    finally:
        attempt.in_transaction = never_ended
        attempt.lease.ending = attempt.finished


@contextmanager
def finishing(attempt: Attempt, connection: CanFinish) -> Iterator[None]:
    """Let the commit in the block finish the job.

    Raises:
        TransactionError: The block has committed nothing.
    """
    # From here on a refused heartbeat may be the echo of our own finish.
    attempt.lease.ending = True
    connection.finishing = attempt
    try:
        yield
    finally:
        connection.finishing = None
    if not attempt.finished:
        raise nothing_committed(attempt)


def nothing_committed(attempt: Attempt) -> TransactionError:
    """Return the error of a transaction that has ended without a commit."""
    return TransactionError(f"nothing of the transaction of job {attempt.claim.id} has been committed")


def refusal(attempt: Attempt, *, is_finished: bool, is_cancelled: bool) -> Exception:
    """Return why the finish of a job was refused, and note whether it is finished all the same.

    Args:
        attempt: The attempt.
        is_finished: The job was finished under the token of this attempt.
        is_cancelled: The job was cancelled after the claim.
    """
    job_id = attempt.claim.id
    if is_finished:
        attempt.finished = True
        return TransactionError(
            f"job {job_id} was finished by its first transaction(), whose commit was not answered; "
            "this one is rolled back"
        )
    if is_cancelled:
        return JobCancelledError(f"job {job_id} was cancelled; its writes are rolled back")
    return LeaseLostError(f"job {job_id} has been claimed by another worker; its writes are rolled back")


def too_early() -> TransactionError:
    """Return the error of a job that begins or commits by itself."""
    return TransactionError(
        "the transaction of a job begins and commits by itself, together with the job's finish; use begin_nested(), or "
        "psycopg's transaction(), for savepoints, and a session of your own for what must be committed earlier"
    )


def note_heartbeat(error: BaseException) -> None:
    """Say in the error of a finish that could not be serialized what is most often the reason."""
    error.add_note("A heartbeat has extended the job's lease since the transaction took its snapshot.")
