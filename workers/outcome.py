"""What becomes of an attempt. Plain values: nothing here touches a store."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from drain.job import JobOptions

# PostgreSQL takes a lot more, but nobody reads it, and a row that is read at each claim should be small.
_LONGEST_MESSAGE = 4_000
_LONGEST_TRACEBACK = 32_000


@dataclass(frozen=True, slots=True)
class Finished:
    """The function returned."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised, or could not be called.

    Attributes:
        error: `type`, `message` and `traceback`, fit to be stored.
        options: Of the registration; None if nobody has registered the name.
        cause: The exception itself, where it was raised in this process.
    """

    error: dict[str, str]
    options: JobOptions | None = None
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def line(self) -> str:
        """The error on one line."""
        first = self.error["message"].partition("\n")[0]
        return f"{self.error['type']}: {first}" if first else self.error["type"]


@dataclass(frozen=True, slots=True)
class Deferred:
    """The function wants to be run later: after so many seconds, or at a time."""

    when: float | datetime


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The function says that no further attempt would help.

    Attributes:
        error: As for `Failed`; its message is the reason.
        cause: As for `Failed`.
    """

    error: dict[str, str]
    cause: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Lost(Failed):
    """The function has learned that somebody else has claimed the job. The database knows whether it is so."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """No attempt would ever succeed; the text says why."""

    explanation: str


@dataclass(frozen=True, slots=True)
class Settled:
    """The function has finished the job by its own transaction.

    Attributes:
        rest: What it did afterwards, which changes nothing about that.
    """

    rest: Outcome


@dataclass(frozen=True, slots=True)
class Recorded:
    """The process that ran the job has written down that it is not finished, and why.

    Attributes:
        dead: Why it is dead; None if it is not.
    """

    dead: str | None = None


Outcome = Settled | Recorded | Finished | Failed | Deferred | GaveUp | Lost | Unreadable


FINISHED = Finished()


def describe(error: BaseException) -> dict[str, str]:
    """An exception as texts that PostgreSQL can store: no NUL, no lone surrogate, no megabytes."""
    return {
        "type": _told(partial(_name, type(error)), _LONGEST_MESSAGE),
        "message": _told(partial(str, error), _LONGEST_MESSAGE),
        "traceback": _told(partial(_traceback, error), _LONGEST_TRACEBACK),
    }


def in_ascii(result: Outcome) -> Outcome:
    """The same outcome, its texts with escapes as in Python for all that is not ASCII."""
    match result:
        case Failed() | GaveUp():
            return replace(result, error={name: _in_ascii(text) for name, text in result.error.items()})
        case Unreadable():
            return Unreadable(_in_ascii(result.explanation))
    return result


def wait_seconds(attempts: int, options: JobOptions | None) -> float:
    """How long to wait after this many failed attempts: exponential, capped, with jitter.

    Between half of the step and all of it, so that jobs which failed together do not come back together.
    """
    options = options or JobOptions()
    # The exponent is bounded, since the float would overflow long before the cap is reached a second time.
    step = min(options.retry_cap_seconds, options.retry_base_seconds * 2.0 ** min(attempts - 1, 64))
    return step * random.uniform(0.5, 1.0)  # noqa: S311


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    # It asks the error for texts and notes, and takes those of a SyntaxError for a place in a file.
    except Exception as unprintable:  # noqa: BLE001
        lines = traceback.format_tb(error.__traceback__)
        return "".join([*lines, f"(the rest cannot be shown: {type(unprintable).__name__})\n"])


def _told(tell: Callable[[], str], longest: int) -> str:
    """A text of an error, whose class may make anything of being asked."""
    try:
        return _storable(tell(), longest)
    except BaseException as unprintable:  # noqa: BLE001
        return f"(its text cannot be shown: {type(unprintable).__name__})"


def _in_ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def _storable(text: str, longest: int) -> str:
    text = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if len(text) <= longest:
        return text
    # The end of a traceback says what happened, its beginning where it came from.
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
