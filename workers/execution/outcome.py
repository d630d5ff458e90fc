"""Outcomes of an attempt as values."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType

from drain.jobs.options import JobOptions
from drain.workers.errors import CommitUndoneError, StepError, UnfitResultError

# Characters: a row read at each claim should be small.
_LONGEST_MESSAGE = 4_000
_LONGEST_TRACEBACK = 32_000
# Frames before a job's function.
_MACHINERY = re.compile(r"(drain\.workers|asyncio|selectors)\b")
# Alarm handlers, whose frames at the end are not the job's.
_ALARMS = frozenset({"interrupt", "_interrupt"})
_NOT_ENCODED = "its result has characters that the encoding of the database lacks"
_ALARMS_FILE = str(Path(__file__).with_name("alarm.py"))


@dataclass(frozen=True, slots=True)
class Finished:
    """The function returned; `result` is JSON to keep."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised, or could not be called.

    Attributes:
        error: `type`, `message` and `traceback`, fit to store.
        options: None if unregistered.
        cause: Exception raised in this process.
        after: Wait in seconds; None for the registered one.
    """

    error: dict[str, str]
    options: JobOptions | None = None
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    after: float | None = None

    @property
    def line(self) -> str:
        """Error on one line."""
        return _line(self.error)


@dataclass(frozen=True, slots=True)
class Deferred:
    """The function wants to run later: after seconds, or at a time."""

    when: float | datetime


@dataclass(frozen=True, slots=True)
class Slowed(Deferred):
    """Deferred, and its key paused until then."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The function waits for an event or sleeps; see `Parked`."""

    name: str
    event: str | None
    when: float | datetime | None


@dataclass(frozen=True, slots=True)
class GaveUp:
    """No further attempt would help.

    Attributes:
        rule: Option that forbids another attempt; None if the function gave up.
    """

    error: dict[str, str]
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    rule: str | None = None

    @property
    def reason(self) -> str:
        """Reason, or ""."""
        return (
            self.error["message"] if self.rule is None else f"{_line(self.error)} (not retried: {self.rule})"
        )


@dataclass(frozen=True, slots=True)
class Lost(Failed):
    """Claimed elsewhere, as the function saw; the database decides."""


@dataclass(frozen=True, slots=True)
class Interrupted(Failed):
    """Ended by the stopping worker; rarely counts."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The job can never succeed, as the text says."""

    explanation: str


@dataclass(frozen=True, slots=True)
class AlreadyFinished:
    """Finished by its transaction, or by another process.

    Attributes:
        rest: Outcome of the code after the finish; only its result is kept.
        is_durable: False if a server crash may still undo the transaction.
    """

    rest: Outcome
    is_durable: bool = True


@dataclass(frozen=True, slots=True)
class Recorded:
    """Recorded as not finished by the process that ran the job.

    Attributes:
        dead: Why it is dead, if so.
        word: "recorded", "cancelled", or "stale" if claimed elsewhere.
        error: Exception type.
    """

    dead: str | None = None
    word: str = "recorded"
    error: str | None = None


Outcome = (
    AlreadyFinished
    | Recorded
    | Finished
    | Failed
    | Deferred
    | Waiting
    | GaveUp
    | Lost
    | Interrupted
    | Unreadable
)


FINISHED = Finished()


def undone_by_crash(options: JobOptions) -> Interrupted:
    """Return the outcome of a commit that a crash of PostgreSQL undid."""
    error = CommitUndoneError("PostgreSQL crashed before the commit of its transaction was on disk")
    return Interrupted(describe(error), options)


def describe(error: BaseException, reason: str = "") -> dict[str, str]:
    """Describe an exception in texts that PostgreSQL can store: no NUL, no lone surrogate, bounded.

    The traceback begins at the job's function.
    """
    return {
        "type": _text(partial(_name, type(error)), _LONGEST_MESSAGE),
        "message": _text(lambda: ": ".join(filter(None, (reason, str(error)))), _LONGEST_MESSAGE),
        "traceback": _text(partial(_traceback, error), _LONGEST_TRACEBACK),
    }


def in_ascii(result: Outcome) -> Outcome:
    """Escape non-ASCII text."""
    match result:
        case Failed() | GaveUp():
            return replace(result, error={name: _in_ascii(text) for name, text in result.error.items()})
        case Unreadable():
            return Unreadable(_in_ascii(result.explanation))
        case Finished(str()):
            return GaveUp(describe(UnfitResultError(_NOT_ENCODED)))
        case AlreadyFinished(rest):
            return replace(result, rest=in_ascii(rest))
        case Waiting(name):
            return GaveUp(
                describe(StepError(f"wait {name!a}: the encoding of the database lacks a character"))
            )
    return result


def _line(error: Mapping[str, str]) -> str:
    first = error["message"].partition("\n")[0]
    return f"{error['type']}: {first}" if first else error["type"]


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _traceback(error: BaseException) -> str:
    trace = _of_the_job(error.__traceback__)
    try:
        shown = traceback.TracebackException(type(error), error, trace, compact=True)
        for each in _chain(shown):
            while len(each.stack) > 1 and _is_of_the_alarm(each.stack[-1]):
                each.stack.pop()
        return "".join(shown.format())
    # TracebackException asks the error for texts, and reads a SyntaxError's as a place in a file.
    except Exception as unprintable:  # noqa: BLE001
        lines = traceback.format_tb(trace)
        return "".join([*lines, f"(the rest cannot be shown: {type(unprintable).__name__})\n"])


def _of_the_job(trace: TracebackType | None) -> TracebackType | None:
    inner = trace
    while inner is not None and _is_machinery(inner.tb_frame.f_globals.get("__name__")):
        inner = inner.tb_next
    return inner or trace


def _is_machinery(module: object) -> bool:
    return isinstance(module, str) and _MACHINERY.match(module) is not None


def _is_of_the_alarm(frame: traceback.FrameSummary) -> bool:
    return frame.name in _ALARMS and frame.filename == _ALARMS_FILE


def _chain(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    pending = [shown]
    while pending:
        each = pending.pop()
        yield each
        following = (each.__cause__, each.__context__, *(each.exceptions or ()))
        pending.extend(more for more in following if more is not None)


def _text(ask: Callable[[], str], longest: int) -> str:
    try:
        return _storable(ask(), longest)
    except BaseException as unprintable:  # noqa: BLE001
        return f"(its text cannot be shown: {type(unprintable).__name__})"


def _in_ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def _storable(text: str, longest: int) -> str:
    text = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if len(text) <= longest:
        return text
    # The beginning shows where, the end what.
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
