"""Outcomes of an attempt, as plain values; nothing here touches a store. `decision` says what follows from each."""

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
from drain.workers.errors import CommitUndoneError, UnfitResultError

# Upper bounds of stored texts, in characters. PostgreSQL takes a lot more, but no person reads it, and a row that is
# read at each claim should be small.
_LONGEST_MESSAGE = 4_000
_LONGEST_TRACEBACK = 32_000
# Packages whose frames lie between the worker and a job's own function: ours, and the event loop of an `async def`.
_MACHINERY = re.compile(r"(drain\.workers|asyncio|selectors)\b")
# Handlers of the alarm, in which an exception from outside is raised: frames at the end that say nothing of the job.
_ALARMS = frozenset({"interrupt", "_interrupt"})
# Message of an outcome whose result the database's encoding cannot hold.
_NOT_ENCODED = "its result has characters that the encoding of the database lacks"
_ALARMS_FILE = str(Path(__file__).with_name("alarm.py"))


@dataclass(frozen=True, slots=True)
class Finished:
    """The function returned.

    Attributes:
        result: What it has returned, as JSON, if the job keeps that; None otherwise.
    """

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised, or could not be called.

    Attributes:
        error: `type`, `message` and `traceback`, fit to be stored.
        options: Of the registration; None if no function is registered under the name.
        cause: The exception itself, where it was raised in this process.
        after: Seconds until the next attempt, as the function asked; None for the wait of the registration.
    """

    error: dict[str, str]
    options: JobOptions | None = None
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    after: float | None = None

    @property
    def line(self) -> str:
        """The error on one line."""
        return _line(self.error)


@dataclass(frozen=True, slots=True)
class Deferred:
    """The function wants to be run later: after some seconds, or at a time."""

    when: float | datetime


@dataclass(frozen=True, slots=True)
class Slowed(Deferred):
    """The function wants to be run later, and that no other job of its key starts until then."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The function, or a rule of its registration, says that no further attempt would help.

    Attributes:
        error: As for `Failed`.
        cause: As for `Failed`.
        rule: Option of the registration that forbids another attempt; None if the function has given up itself.
    """

    error: dict[str, str]
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    rule: str | None = None

    @property
    def reason(self) -> str:
        """Why no further attempt would help; "" if the function gave no reason."""
        return (
            self.error["message"] if self.rule is None else f"{_line(self.error)} (not retried: {self.rule})"
        )


@dataclass(frozen=True, slots=True)
class Lost(Failed):
    """The function has learned that another worker has claimed the job. The database knows whether it is so."""


@dataclass(frozen=True, slots=True)
class Interrupted(Failed):
    """The worker stops and has ended the attempt, which does not count unless that happens too often."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The job can never succeed; the text says why."""

    explanation: str


@dataclass(frozen=True, slots=True)
class AlreadyFinished:
    """The job is finished already: by its own transaction, or by the process that ran it.

    Attributes:
        rest: Outcome of its code after the finish, which changes nothing about the finish; its result is added.
        is_durable: False if a crash of the server may still undo the finish, together with all of the transaction.
    """

    rest: Outcome
    is_durable: bool = True


@dataclass(frozen=True, slots=True)
class Recorded:
    """The process that ran the job has recorded that the job is not finished, and why.

    Attributes:
        dead: Why it is dead; None if it is not.
        word: "recorded", or "cancelled" if it was cancelled, or "stale" if another worker has claimed it.
        error: Name of the type of exception with which it failed; None if it did not.
    """

    dead: str | None = None
    word: str = "recorded"
    error: str | None = None


Outcome = AlreadyFinished | Recorded | Finished | Failed | Deferred | GaveUp | Lost | Interrupted | Unreadable


FINISHED = Finished()


def undone_by_crash(options: JobOptions) -> Interrupted:
    """Return the outcome of an attempt whose transaction had committed, until a crash of PostgreSQL undid that."""
    error = CommitUndoneError(
        "PostgreSQL has crashed, and the commit of its transaction was not yet on the disk"
    )
    return Interrupted(describe(error), options)


def describe(error: BaseException, reason: str = "") -> dict[str, str]:
    """Return an exception as texts that PostgreSQL can store: no NUL, no lone surrogate, no megabytes.

    The traceback begins at the job's own function, the message with the reason if there is one.
    """
    return {
        "type": _text(partial(_name, type(error)), _LONGEST_MESSAGE),
        "message": _text(lambda: ": ".join(filter(None, (reason, str(error)))), _LONGEST_MESSAGE),
        "traceback": _text(partial(_traceback, error), _LONGEST_TRACEBACK),
    }


def in_ascii(result: Outcome) -> Outcome:
    """Return the same outcome, its texts with Python's escapes for all that is not ASCII."""
    match result:
        case Failed() | GaveUp():
            return replace(result, error={name: _in_ascii(text) for name, text in result.error.items()})
        case Unreadable():
            return Unreadable(_in_ascii(result.explanation))
        case Finished(str()):
            return GaveUp(describe(UnfitResultError(_NOT_ENCODED)))
        case AlreadyFinished(rest):
            return replace(result, rest=in_ascii(rest))
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
    # TracebackException asks the error for texts and notes, and reads those of a SyntaxError as a place in a file.
    except Exception as unprintable:  # noqa: BLE001
        lines = traceback.format_tb(trace)
        return "".join([*lines, f"(the rest cannot be shown: {type(unprintable).__name__})\n"])


def _of_the_job(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from the job's own function on; all of it if there is no such function in it."""
    inner = trace
    while inner is not None and _is_machinery(inner.tb_frame.f_globals.get("__name__")):
        inner = inner.tb_next
    return inner or trace


def _is_machinery(module: object) -> bool:
    return isinstance(module, str) and _MACHINERY.match(module) is not None


def _is_of_the_alarm(frame: traceback.FrameSummary) -> bool:
    return frame.name in _ALARMS and frame.filename == _ALARMS_FILE


def _chain(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an exception, its causes, its contexts and the members of its groups."""
    pending = [shown]
    while pending:
        each = pending.pop()
        yield each
        following = (each.__cause__, each.__context__, *(each.exceptions or ()))
        pending.extend(more for more in following if more is not None)


def _text(ask: Callable[[], str], longest: int) -> str:
    """Return a text of an error, shortened to about `longest` characters; a note instead if its class raises."""
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
    # The end of a traceback says what happened, its beginning where it came from.
    half = longest // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
