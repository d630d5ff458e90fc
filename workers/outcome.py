"""What becomes of an attempt. Plain values: nothing here touches a store."""

from __future__ import annotations

import random
import traceback
from dataclasses import dataclass
from datetime import datetime

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
    """

    error: dict[str, str]
    options: JobOptions | None = None

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
    """

    error: dict[str, str]


@dataclass(frozen=True, slots=True)
class Lost(Failed):
    """The function has learned that somebody else has claimed the job. The database knows whether it is so."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """No attempt would ever succeed; the text says why."""

    explanation: str


Outcome = Finished | Failed | Deferred | GaveUp | Lost | Unreadable


def describe(error: BaseException) -> dict[str, str]:
    """An exception as texts that PostgreSQL can store: no NUL, no lone surrogate, no megabytes."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except BaseException as unprintable:  # noqa: BLE001  (the error's own __str__ may raise anything)
        message = f"(its text cannot be shown: {type(unprintable).__name__})"
    lines = "".join(traceback.format_exception(error))
    return {
        "type": _storable(name, _LONGEST_MESSAGE),
        "message": _storable(message, _LONGEST_MESSAGE),
        "traceback": _storable(lines, _LONGEST_TRACEBACK),
    }


def wait_seconds(attempts: int, options: JobOptions | None) -> float:
    """How long to wait after this many failed attempts: exponential, capped, with jitter.

    Between half of the step and all of it, so that jobs which failed together do not come back together.
    """
    options = options or JobOptions()
    # The exponent is bounded, since the float would overflow long before the cap is reached a second time.
    step = min(options.retry_cap_seconds, options.retry_base_seconds * 2.0 ** min(attempts - 1, 64))
    return step * random.uniform(0.5, 1.0)  # noqa: S311


def _storable(text: str, longest: int) -> str:
    text = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if len(text) <= longest:
        return text
    # The end of a traceback says what happened, its beginning where it came from.
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
