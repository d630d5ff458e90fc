"""Staging: inserts jobs in the transaction that the application has open.

If that transaction commits, the job will run, whatever process crashes next. If it rolls back, the job never existed.
Nothing here commits, rolls back, or waits for anything but one INSERT; an idempotency key alone may have to wait for
another transaction with the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from drain import hooks
from drain.jobs import executors, rows
from drain.jobs.executors import Connectable
from drain.jobs.rows import Arguments, Job
from drain.jobs.stage_options import ManyOptions, StageOptions


def stage(
    connection: Connectable,
    job: Job,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[StageOptions],
) -> int:
    """Stage one job in the transaction that is open on `connection`; one round trip.

    Options that are left out come from the job's registration (`@job`), if `job` is a registered
    function, and from the schema's defaults otherwise.

    Args:
        connection: A SQLAlchemy Session or Connection, a psycopg connection or cursor, or `connection` of
            django.db. Its transaction is joined and never committed. On a connection in autocommit mode the
            INSERT is a transaction of its own.
        job: The job's name, such as `"shop.jobs.send_receipt"`, or the function itself.
        args: Positional arguments; they travel as JSON, and those of a registered function are checked
            against its parameters.
        kwargs: Keyword arguments, likewise.
        queue: Queue whose workers run it.
        priority: Lower runs first; 0 by default.
        run_at: Time before which it does not run; with a time zone.
        run_in: The same as a length of time, or in seconds, from now by the clock of this machine.
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
        idempotency_key: A job that this database role staged with this text before is not staged again: its id is
            returned.
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
        SchemaError: The database has no job-drain tables. The transaction is aborted.
        The driver's own IntegrityError: A CHECK of the schema refused the row, by its name.
    """
    if not hooks.producers:
        return _stage(connection, job, args, kwargs, options)
    with rows.production(job, options) as production:
        job_id = _stage(connection, job, args, kwargs, options)
        production.ids = (job_id,)
        return job_id


def _stage(
    connection: Connectable,
    job: Job,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: StageOptions,
) -> int:
    insert = rows.insert_one(job, args, kwargs, **options)
    (job_id,) = insert.ids(executors.insert(connection, insert.statement, insert.parameters))
    return job_id


def stage_many(
    connection: Connectable,
    job: Job,
    arguments: Iterable[Arguments],
    **options: Unpack[ManyOptions],
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
        run_in: As for `stage`.
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
    if not hooks.producers:
        return _stage_many(connection, job, arguments, options)
    with rows.production(job, options, many=True) as production:
        production.ids = ids = _stage_many(connection, job, arguments, options)
        return ids


def _stage_many(
    connection: Connectable, job: Job, arguments: Iterable[Arguments], options: ManyOptions
) -> list[int]:
    ids: list[int] = []
    for insert in rows.insert_many(job, arguments, **options):
        ids += executors.insert(connection, insert.statement, insert.parameters)
    return ids
