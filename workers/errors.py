"""What a job may raise to say what is to become of it, and what it may see raised."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

_LONGEST_SECONDS = 365 * 24 * 3600


class Defer(Exception):  # noqa: N818  (it is no error: the job asks to be run later)
    """Raised by a job that wants to run later: `raise Defer(60)`, or until a time. No failed attempt.

    Args:
        when: Seconds or a timedelta from now, or a time with its time zone.

    Raises:
        ValueError: `when` is negative, longer than a year, or a time without time zone.
    """

    def __init__(self, when: float | timedelta | datetime) -> None:
        super().__init__(f"deferred: {when}")
        self.when = _checked(when)


class Dead(Exception):  # noqa: N818  (it is no error: the job gives up)
    """Raised by a job that no further attempt could help: it goes to `dead_jobs` at once.

    Args:
        reason: A sentence for the person who will look at it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class LeaseLostError(Exception):
    """Somebody else has claimed the job: nothing that this attempt does can finish it any more.

    Raised inside of the running job where it runs in the main thread, and by `transaction()`, whose writes
    are then rolled back.
    """


class JobTimeoutError(Exception):
    """The job ran for longer than its timeout_seconds."""


class NotRegisteredError(Exception):
    """Nobody has registered a function under the job's name."""


class ArgumentsDoNotFitError(TypeError):
    """The arguments that were staged are not those that the function takes."""


class NoCurrentJobError(RuntimeError):
    """`current_job()` or `transaction()` was called where no job is running."""


class TransactionError(RuntimeError):
    """A job's `transaction()` was used in a way in which it could not commit together with the finish."""


def _checked(when: float | timedelta | datetime) -> float | datetime:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError("Defer: the time has no time zone; use datetime.now(UTC) + ... or add tzinfo")
        return when
    seconds = when.total_seconds() if isinstance(when, timedelta) else float(when)
    if not math.isfinite(seconds) or not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"Defer: {when} must lie between 0 and a year")
    return seconds
