"""Staging: inserts jobs in the transaction that the application has open.

If that transaction commits, the job will run, whatever process crashes next. If it rolls back, the job never existed.
Nothing here commits, rolls back, or waits for anything but one INSERT.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from drain.errors import StageError
from drain.jobs import callers
from drain.jobs.callers import Connectable
from drain.jobs.options import LARGEST_INTEGER, RegisteredJob, name_and_options
from drain.tables import staged

Job: TypeAlias = "str | Callable[..., Any] | RegisteredJob"

# Upper bounds of one INSERT of stage_many, in rows and characters: few round trips, and no JSON array that is larger
# than PostgreSQL accepts.
_ROWS_PER_STATEMENT = 10_000
_CHARACTERS_PER_STATEMENT = 8_000_000
# JSON escape of NUL, and not an escaped backslash followed by u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
# Surrogates: halves of a character.
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def stage(
    connection: Connectable,
    job: Job,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    expires_at: datetime | None = None,
    tag: str | None = None,
    max_attempts: int | None = None,
    timeout_seconds: int | None = None,
    context: Mapping[str, Any] | None = None,
) -> int:
    """Stage one job in the transaction that is open on `connection`; one round trip.

    Options that are left out come from the job's registration (`@job`), if `job` is a registered
    function, and from the schema's defaults otherwise.

    Args:
        connection: A SQLAlchemy Session or Connection, or a psycopg connection or cursor. Its
            transaction is joined and never committed. On a connection in autocommit mode the INSERT
            is a transaction of its own.
        job: The job's name, such as `"shop.jobs.send_receipt"`, or the function itself.
        args: Positional arguments; they travel as JSON.
        kwargs: Keyword arguments; they travel as JSON.
        queue: Queue whose workers run it.
        priority: Lower runs first; 0 by default.
        run_at: Time before which it does not run; with a time zone.
        expires_at: Time after which it does not run; with a time zone.
        tag: Place where it was staged, for people: `"storage.create_annotation"`.
        max_attempts: Attempts before it is dead; 0 for no limit.
        timeout_seconds: Timeout of one attempt.
        context: Trace and log context, as JSON.

    Returns:
        The job's id.

    Raises:
        StageError: The job cannot be staged as given. Nothing was sent; the transaction is unchanged.
        The driver's own IntegrityError: A CHECK of the schema refused the row, by its name.
    """
    columns = _columns(job, queue, priority, run_at, expires_at, tag, max_attempts, timeout_seconds, context)
    columns["job_args"], columns["job_kwargs"] = _arguments(args, kwargs or {})
    (job_id,) = callers.insert(connection, staged.insert_statement, columns)
    return job_id


def stage_many(
    connection: Connectable,
    job: Job,
    arguments: Iterable[Sequence[Any] | Mapping[str, Any]],
    *,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    expires_at: datetime | None = None,
    tag: str | None = None,
    max_attempts: int | None = None,
    timeout_seconds: int | None = None,
    context: Mapping[str, Any] | None = None,
) -> list[int]:
    """Stage one job for each element of `arguments`, in one statement per 10,000.

    Args:
        connection: As for `stage`.
        job: As for `stage`.
        arguments: For each job its positional arguments (a sequence) or its keyword arguments (a
            mapping): `[(1,), (2,)]` or `[{"user": 1}, {"user": 2}]`. May be a generator.
        queue: As for `stage`.
        priority: As for `stage`.
        run_at: As for `stage`.
        expires_at: As for `stage`.
        tag: As for `stage`.
        max_attempts: As for `stage`.
        timeout_seconds: As for `stage`.
        context: As for `stage`.

    Returns:
        The ids, in the order of `arguments`.

    Raises:
        StageError: As for `stage`. Jobs before the refused element may have been staged: roll back, or use
            a savepoint.
    """
    columns = _columns(job, queue, priority, run_at, expires_at, tag, max_attempts, timeout_seconds, context)
    ids: list[int] = []
    waiting: list[str] = []

    def send() -> None:
        parameters = {**columns, "arguments": f"[{','.join(waiting)}]"}
        ids.extend(callers.insert(connection, staged.insert_many_statement, parameters))
        waiting.clear()

    size = 0
    if not isinstance(arguments, Iterable):
        raise StageError(f"the arguments of many jobs are given as a list, not as a {_kind(arguments)}")
    for given in arguments:
        args, kwargs = ((), given) if isinstance(given, Mapping) else (given, {})
        waiting.append("[{},{}]".format(*_arguments(args, kwargs)))
        size += len(waiting[-1])
        if len(waiting) == _ROWS_PER_STATEMENT or size > _CHARACTERS_PER_STATEMENT:
            send()
            size = 0
    if waiting:
        send()
    return ids


def row(job: Job, args: Sequence[Any], kwargs: Mapping[str, Any] | None, **options: Any) -> dict[str, Any]:
    """Check a job with options of `stage`, as `stage` does; returns the columns of its row that have a value.

    Raises:
        StageError: As for `stage`.
    """
    given = dict.fromkeys(("queue", "priority", "run_at", "expires_at", "tag"))
    given |= dict.fromkeys(("max_attempts", "timeout_seconds", "context"))
    columns = _columns(job, **given | options)
    columns["job_args"], columns["job_kwargs"] = _arguments(args, kwargs or {})
    return columns


def _columns(
    job: Job,
    queue: str | None,
    priority: int | None,
    run_at: datetime | None,
    expires_at: datetime | None,
    tag: str | None,
    max_attempts: int | None,
    timeout_seconds: int | None,
    context: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Collect the columns of the row that have a value; the others get the schema's defaults."""
    name, options = name_and_options(job)
    if options is not None:
        queue = options.queue if queue is None else queue
        max_attempts = options.max_attempts if max_attempts is None else max_attempts
        timeout_seconds = options.timeout_seconds if timeout_seconds is None else timeout_seconds
    columns = {
        "job_name": _text("job", name),
        "queue": _text("queue", queue),
        "priority": _integer("priority", priority),
        "scheduled_at": _aware("run_at", run_at),
        "expires_at": _aware("expires_at", expires_at),
        "tag": _text("tag", tag),
        "max_attempts": _integer("max_attempts", max_attempts),
        "timeout_seconds": _integer("timeout_seconds", timeout_seconds),
        "context": _context(context),
    }
    return {column: value for column, value in columns.items() if value is not None}


def _aware(name: str, time: datetime | None) -> datetime | None:
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise StageError(f"{name} must be a datetime, such as datetime.now(UTC) + ..., not a {_kind(time)}")
    if time.utcoffset() is None:
        raise StageError(f"{name} has no time zone; use datetime.now(UTC) + ... or add tzinfo")
    return time


def _context(context: Mapping[str, Any] | None) -> str | None:
    if context is None:
        return None
    if not isinstance(context, Mapping):
        raise StageError(f"context must be a mapping, not a {_kind(context)}")
    return _json("context", dict(context))


def _integer(name: str, number: int | None) -> int | None:
    if number is None:
        return None
    # True is an int to Python, but a mistake as a number here.
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise StageError(f"{name} must be a whole number, not a {_kind(number)}")
    number = operator.index(number)
    if not -LARGEST_INTEGER - 1 <= number <= LARGEST_INTEGER:
        raise StageError(f"{name} must lie between {-LARGEST_INTEGER - 1} and {LARGEST_INTEGER}")
    return number


def _text(name: str, text: str | None) -> str | None:
    """Convert a text to a plain `str`: the drivers would write an Enum by its name."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise StageError(f"{name} must be a text, not a {_kind(text)}")
    if "\0" in text or (not text.isascii() and _HALF_CHARACTER.search(text)):
        raise StageError(
            f"{name} holds a NUL or half a character, which PostgreSQL cannot store: {text!a:.100}"
        )
    return str.__str__(text)


def _kind(value: object) -> str:
    return type(value).__name__


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str]:
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise StageError(f"arguments are given as a list or tuple, such as [42], not as a {_kind(args)}")
    if not isinstance(kwargs, Mapping):
        raise StageError(f"keyword arguments are given as a mapping, not as a {_kind(kwargs)}")
    return _json("arguments", list(args)), _json("keyword arguments", dict(kwargs))


def _json(part: str, value: Any) -> str:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        # PostgreSQL would refuse surrogates and NUL too, and would abort the application's transaction.
        text.encode()
        if _NUL.search(text):
            raise ValueError("a text holds a NUL character")
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise StageError(
            f"the {part} cannot be written as JSON ({error}); "
            "pass numbers, texts, lists and objects, and ids rather than what they stand for"
        ) from None
