"""Staging: inserts jobs in the transaction that the application has open.

If that transaction commits, the job will run, whatever process crashes next. If it rolls back, the job never existed.
Nothing here commits, rolls back, or waits for anything but one INSERT; an idempotency key alone may have to wait for
another transaction with the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from drain.errors import StageError
from drain.jobs import callers, values
from drain.jobs.callers import Connectable
from drain.jobs.idempotency import stage_once
from drain.jobs.keys import NO_KEYS, KeyOption, Keys
from drain.jobs.options import JobOptions, RegisteredJob, name_and_options
from drain.tables import inserts

Job: TypeAlias = "str | Callable[..., Any] | RegisteredJob"

# Upper bounds of one INSERT of stage_many, in rows and characters: few round trips, and no JSON array that is larger
# than PostgreSQL accepts.
_ROWS_PER_STATEMENT = 10_000
_CHARACTERS_PER_STATEMENT = 8_000_000


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
    key: KeyOption | None = None,
    unique_key: KeyOption | None = None,
    keep: Literal["first", "last"] | None = None,
    quiet: timedelta | None = None,
    idempotency_key: str | None = None,
    idempotency_period: timedelta | None = None,
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
        key: Customer, tenant or resource, for the rules of the queue: a text of up to 255 characters, a whole
            number, which is stored as its digits, or a function of the job's arguments that returns one of
            these, or None.
        unique_key: Jobs of this name with the same unique key that wait at the same time are one job: the
            enqueuer lets one of them stand, and the others end in `finished_jobs` as superseded by it. A job
            that runs already does not count. Given as `key`.
        keep: Which one stands: the `"first"`, as by default, or the `"last"`. The latest job decides.
        quiet: Time for which no other job with the unique key must have come before it runs; at most a
            year. It begins with the transaction, or at `run_at`.
        idempotency_key: A job that was staged with this text before is not staged again: its id is returned.
            This is looked up at once: if another transaction has staged with the same key and is still
            open, this one waits until it ends. At repeatable read the driver's serialization failure follows,
            and the transaction has to be repeated.
        idempotency_period: Time for which the key is kept if the job is new; a week by default.

    Returns:
        The job's id; with an idempotency key that is known, the id of the job that has it.

    Raises:
        StageError: The job cannot be staged as given. Nothing was sent; the transaction is unchanged.
        IdempotencyConflictError: The job that has the idempotency key has another name or other arguments.
            The transaction is unchanged.
        The driver's own IntegrityError: A CHECK of the schema refused the row, by its name.
    """
    columns = row(
        *(job, args, kwargs),
        queue=queue,
        priority=priority,
        run_at=run_at,
        expires_at=expires_at,
        tag=tag,
        max_attempts=max_attempts,
        timeout_seconds=timeout_seconds,
        context=context,
        key=key,
        unique_key=unique_key,
        keep=keep,
        quiet=quiet,
    )
    if idempotency_key is not None:
        return stage_once(connection, idempotency_key, idempotency_period, columns)
    if idempotency_period is not None:
        raise StageError("idempotency_period needs an idempotency_key")
    (job_id,) = callers.insert(connection, inserts.insert_one(tuple(columns)), columns)
    return int(job_id)


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
    key: KeyOption | None = None,
    unique_key: KeyOption | None = None,
    keep: Literal["first", "last"] | None = None,
    quiet: timedelta | None = None,
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
        key: As for `stage`; a function is called with the arguments of each job.
        unique_key: As for `stage`; a function is called with the arguments of each job.
        keep: As for `stage`.
        quiet: As for `stage`.

    Returns:
        The ids, in the order of `arguments`.

    Raises:
        StageError: As for `stage`. Jobs before the refused element may have been staged: roll back, or use
            a savepoint.
    """
    name, options = name_and_options(job)
    columns = _columns(
        name, options, queue, priority, run_at, expires_at, tag, max_attempts, timeout_seconds, context
    )
    keys = _keys(key, unique_key, keep, quiet, options)
    own_keys = keys is not None and keys.differ
    if keys is not None and not own_keys:
        columns |= keys.columns((), {})
    statement = inserts.insert_many(tuple(columns), own_keys=own_keys)
    ids: list[int] = []
    waiting: list[str] = []

    def send() -> None:
        parameters = {**columns, inserts.ARGUMENTS: f"[{','.join(waiting)}]"}
        ids.extend(callers.insert(connection, statement, parameters))
        waiting.clear()

    size = 0
    if not isinstance(arguments, Iterable):
        kind = values.name_of_type(arguments)
        raise StageError(f"the arguments of many jobs are given as a list, not as a {kind}")
    for given in arguments:
        waiting.append(_element(given, keys if own_keys else None))
        size += len(waiting[-1])
        if len(waiting) == _ROWS_PER_STATEMENT or size > _CHARACTERS_PER_STATEMENT:
            send()
            size = 0
    if waiting:
        send()
    return ids


def row(
    job: Job,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    *,
    key: KeyOption | None = None,
    unique_key: KeyOption | None = None,
    keep: str | None = None,
    quiet: timedelta | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Check a job and the options of `stage`; returns the columns of its row that have a value.

    Raises:
        StageError: As for `stage`.
    """
    name, registered = name_and_options(job)
    columns = _columns(name, registered, **options)
    columns["job_args"], columns["job_kwargs"] = values.as_arguments(args, kwargs or {})
    keys = _keys(key, unique_key, keep, quiet, registered)
    return columns if keys is None else columns | keys.columns(args, kwargs or {})


def _element(given: Sequence[Any] | Mapping[str, Any], keys: Keys | None) -> str:
    """Write the arguments of one of many jobs as JSON, with its own keys if it has some."""
    args, kwargs = ((), given) if isinstance(given, Mapping) else (given, {})
    parts = list(values.as_arguments(args, kwargs))
    if keys is not None:
        parts.append(values.as_json("keys", keys.columns(args, kwargs)))
    return f"[{','.join(parts)}]"


def _keys(
    key: KeyOption | None,
    unique_key: KeyOption | None,
    keep: str | None,
    quiet: timedelta | None,
    options: JobOptions | None,
) -> Keys | None:
    """Merge the keys of a call with those of the registration, and check them; None if there are none."""
    defaults = NO_KEYS if options is None else options.keys
    if defaults is NO_KEYS and key is None and unique_key is None and keep is None and quiet is None:
        return None
    merged = Keys(key, unique_key, keep, quiet).over(defaults)
    merged.check()
    return merged


def _columns(
    name: str,
    options: JobOptions | None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    expires_at: datetime | None = None,
    tag: str | None = None,
    max_attempts: int | None = None,
    timeout_seconds: int | None = None,
    context: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Collect the columns of the row that have a value; the others get the schema's defaults."""
    if options is not None:
        queue = options.queue if queue is None else queue
        max_attempts = options.max_attempts if max_attempts is None else max_attempts
        timeout_seconds = options.timeout_seconds if timeout_seconds is None else timeout_seconds
    columns = {
        "job_name": values.as_text("job", name),
        "queue": values.as_text("queue", queue),
        "priority": values.as_integer("priority", priority),
        "scheduled_at": values.as_time("run_at", run_at),
        "expires_at": values.as_time("expires_at", expires_at),
        "tag": values.as_text("tag", tag),
        "max_attempts": values.as_integer("max_attempts", max_attempts),
        "timeout_seconds": values.as_integer("timeout_seconds", timeout_seconds),
        "context": values.as_context(context),
    }
    return {column: value for column, value in columns.items() if value is not None}
