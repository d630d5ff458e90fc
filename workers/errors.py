"""Exceptions that a job may raise to decide what becomes of it, and exceptions that a job may see raised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_LONGEST_SECONDS = 365 * 24 * 3600


class Defer(Exception):  # noqa: N818  (it is no error: the job asks to be run later)
    """Raised by a job that wants to run later: `raise Defer(60)`, or until a time. No failed attempt.

    Args:
        when: Seconds or a timedelta from now, or a time with its time zone.

    Raises:
        ValueError: `when` is negative, further off than a year, no number, or a time without time zone.
    """

    def __init__(self, when: float | timedelta | datetime) -> None:
        self.when = checked(when)
        super().__init__(f"deferred: {when}")


class RateLimited(Exception):  # noqa: N818  (it is no error: the job asks to be run later)
    """Raised by a job whose target asks for a pause: `raise RateLimited(retry_after=30)`. No failed attempt.

    The job waits, and until then no job of its key starts in its queue, on any worker; without a key, no job of the
    queue. Jobs that run already go on.

    Args:
        retry_after: Seconds or a timedelta from now, or a time with its time zone.

    Raises:
        ValueError: As for `Defer`.
    """

    def __init__(self, retry_after: float | timedelta | datetime) -> None:
        self.retry_after = checked(retry_after, "RateLimited")
        super().__init__(f"rate limited: {retry_after}")


class Retry(Exception):  # noqa: N818  (it asks for the next attempt)
    """Raised by a job to fail this attempt and set the wait: `raise Retry(after=5)`.

    It counts as any failed attempt does: after the last one that `max_attempts` allows, the job is dead. Raised from an
    error, or while one is handled, it records that error.

    Args:
        after: Seconds or a timedelta from now; None for the wait that the registration gives.
        reason: Sentence that is recorded, before the message of the error if there is one.

    Raises:
        ValueError: `after` is negative, longer than a year, or not a number of seconds.
    """

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        self.after = checked_wait(after)
        self.reason = reason
        wait = "" if after is None else f"retry after {after}"
        super().__init__(reason or wait)


class Dead(Exception):  # noqa: N818  (it is no error: the job gives up)
    """Raised by a job that no further attempt could help: it goes to `dead_jobs` at once.

    Args:
        reason: A sentence for the person who will look at it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class UnfitResultError(Dead):
    """The result of a job that keeps it cannot be kept: it is no JSON, or too large. The job is dead at once."""


class LeaseLostError(Exception):
    """Another worker has claimed the job: nothing that this attempt does can finish it any more.

    Raised inside of the running job, again every ten seconds should the job
    go on, and by `transaction()`, whose writes are then rolled back.
    """


class JobCancelledError(Exception):
    """The job was cancelled while it ran: nothing that this attempt does can finish it any more.

    Raised as LeaseLostError is, from the first heartbeat after the cancel on, and by `transaction()`.
    """


class JobTimeoutError(Exception):
    """The job has run for longer than its timeout_seconds; raised again every ten seconds should it go on."""


class WorkerStoppedError(Exception):
    """The worker of the job stops, and the job did not end in time: it will be tried again."""


# What is raised in a running job from outside; `Dead` by RQ's command stop-job.
INTERRUPTIONS = (Dead, JobCancelledError, JobTimeoutError, LeaseLostError, WorkerStoppedError)


class WorkerDiedError(Exception):
    """The process that ran the job was killed, or ended, in the middle of it."""


class CommitUndoneError(Exception):
    """A crash of PostgreSQL has undone the job's transaction, which was committed with `commit="grouped"`."""


class NotRegisteredError(Exception):
    """No function is registered under the job's name."""


class ArgumentsDoNotFitError(TypeError):
    """The staged arguments are not those that the function takes."""


class JobDeadError(Exception):
    """The job has gone to `dead_jobs`; RQ's books and exception handlers see this if the job itself raised nothing.

    Attributes:
        drain_job_id: Id of the job.
    """

    drain_job_id: int | None = None


class HookError(Exception):
    """A hook of the application cannot be used around the job."""


class NoCurrentJobError(RuntimeError):
    """`current_job()` or `transaction()` was called where no job is running."""


class TransactionError(RuntimeError):
    """A job's `transaction()` was used in a way in which it could not commit together with the finish."""


def checked(when: float | timedelta | datetime, name: str = "Defer") -> float | datetime:
    """Return the argument of `Defer` or `RateLimited` in seconds or as a time.

    Raises:
        ValueError: As `Defer`.
    """
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise ValueError(f"{name}: the time has no time zone; use datetime.now(UTC) + ... or add tzinfo")
        # Whether it has come is for the database's clock to say; this is to catch a slip of some orders.
        if (when - datetime.now(UTC)).total_seconds() > _LONGEST_SECONDS:
            raise ValueError(f"{name}: {when} is more than a year ahead")
        return when
    return _seconds(when, name)


def checked_wait(after: float | timedelta | None) -> float | None:
    """Return the argument of `Retry` in seconds.

    Raises:
        ValueError: As `Retry`.
    """
    return None if after is None else _seconds(after, "Retry")


def failure_of(error: BaseException) -> BaseException:
    """Return the error of a failed attempt: for a `Retry`, the one that it was raised from or in answer to."""
    if not issubclass(type(error), Retry):
        return error
    answered = error.__cause__
    if answered is None and not error.__suppress_context__:
        answered = error.__context__
    return error if answered is None else answered


def _seconds(when: float | timedelta, name: str) -> float:
    seconds = when.total_seconds() if isinstance(when, timedelta) else when
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"{name}: {when!r} does not lie between 0 seconds and a year")
    return float(seconds)
