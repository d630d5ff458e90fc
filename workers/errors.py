"""Exceptions that a job may raise to decide its outcome, or see raised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_LONGEST_SECONDS = 365 * 24 * 3600


class Defer(Exception):  # noqa: N818  (not an error: the job asks to be run later)
    """Raise to run later: `raise Defer(60)`, or at a time. Not a failed attempt.

    Args:
        when: Seconds or a timedelta from now, or a time with time zone.

    Raises:
        ValueError: `when` is negative, more than a year ahead, not a number, or without time zone.
    """

    def __init__(self, when: float | timedelta | datetime) -> None:
        self.when = checked(when)
        super().__init__(f"deferred: {when}")


class RateLimited(Exception):  # noqa: N818  (not an error: the job asks to be run later)
    """Raise when the target asks for a pause: `raise RateLimited(retry_after=30)`. Not a failed attempt.

    The job waits, and until then no job of its key (or, without one, of its queue) starts anywhere. Running jobs go on.

    Args:
        retry_after: Seconds or a timedelta from now, or a time with time zone.

    Raises:
        ValueError: As for `Defer`.
    """

    def __init__(self, retry_after: float | timedelta | datetime) -> None:
        self.retry_after = checked(retry_after, "RateLimited")
        super().__init__(f"rate limited: {retry_after}")


class Retry(Exception):  # noqa: N818  (it asks for the next attempt)
    """Raise to fail this attempt and set the wait: `raise Retry(after=5)`.

    After the last of `max_attempts`, the job is dead. Records the error it was raised from, or while handling.

    Args:
        after: Seconds or a timedelta from now; None for the registered wait.
        reason: Sentence recorded before the error's message.

    Raises:
        ValueError: `after` is negative, longer than a year, or not a number.
    """

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        self.after = checked_wait(after)
        self.reason = reason
        wait = "" if after is None else f"retry after {after}"
        super().__init__(reason or wait)


class Dead(Exception):  # noqa: N818  (not an error: the job gives up)
    """Raise when no further attempt could help: the job goes to `dead_jobs` at once.

    Args:
        reason: Sentence for operators.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class UnfitResultError(Dead):
    """A result that must be kept is not JSON, or too large; the job is dead at once."""


class StepError(Dead):
    """A step's name is not valid or used twice, or its function cannot be awaited here; the job is dead at once."""


class EventTimeoutError(Dead):
    """No event came in time. Kills the job unless caught; each later attempt raises it again."""


class Parked(BaseException):
    """Raised by a wait to end the attempt, past `except Exception`; the job runs again when the wait has ended.

    Attributes:
        name: Step that records the outcome.
        event: None to sleep.
        when: Seconds from now, or a time; None without timeout.
    """

    def __init__(self, name: str, event: str | None, when: float | datetime | None) -> None:
        self.name, self.event, self.when = name, event, when
        super().__init__(f"waits for event {event!r}" if event else f"sleeps until {when}")


class LeaseLostError(Exception):
    """Another worker has claimed the job, so this attempt cannot finish it.

    Raised in the running job, again every ten seconds, and by `transaction()`, whose writes are rolled back.
    """


class JobCancelledError(Exception):
    """The running job was cancelled, so this attempt cannot finish it.

    Raised like LeaseLostError, from the first heartbeat after the cancellation.
    """


class JobTimeoutError(Exception):
    """The job has exceeded its timeout_seconds; raised again every ten seconds."""


class WorkerStoppedError(Exception):
    """The job's worker is stopping; the job will be retried."""


# Raised in a running job from outside; `Dead` by RQ's stop-job command.
INTERRUPTIONS = (Dead, JobCancelledError, JobTimeoutError, LeaseLostError, WorkerStoppedError)


class WorkerDiedError(Exception):
    """The process that ran the job died during it."""


class CommitUndoneError(Exception):
    """A crash of PostgreSQL undid the transaction of a job with `commit="grouped"`."""


class NotRegisteredError(Exception):
    """The job's name is not registered."""


class ArgumentsDoNotFitError(TypeError):
    """The staged arguments do not fit the function."""


class JobDeadError(Exception):
    """The job is dead; RQ sees this if the job itself raised nothing."""

    drain_job_id: int | None = None


class HookError(Exception):
    """A hook cannot be used around the job."""


class NoCurrentJobError(RuntimeError):
    """`current_job()`, `transaction()` or a step was called outside a job."""


class TransactionError(RuntimeError):
    """A job's `transaction()` was used in a way that cannot commit with the finish."""


def checked(when: float | timedelta | datetime, name: str = "Defer") -> float | datetime:
    """Return seconds or a time, or raise ValueError."""
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise ValueError(f"{name}: the time has no time zone; use datetime.now(UTC) + ... or add tzinfo")
        # The database's clock decides; this only catches gross mistakes.
        if (when - datetime.now(UTC)).total_seconds() > _LONGEST_SECONDS:
            raise ValueError(f"{name}: {when} is more than a year ahead")
        return when
    return _seconds(when, name)


def checked_wait(after: float | timedelta | None) -> float | None:
    """Return seconds, or raise ValueError."""
    return None if after is None else _seconds(after, "Retry")


def failure_of(error: BaseException) -> BaseException:
    """Return a failed attempt's error; for a `Retry`, the one it answers."""
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
        raise ValueError(f"{name}: {when!r} is not between 0 seconds and a year")
    return float(seconds)
