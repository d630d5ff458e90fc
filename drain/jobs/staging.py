"""Staging in the application's open transaction.

A committed job will run, whatever crashes; a rolled-back one never existed. Only a concurrent idempotency key makes
staging wait for more than an INSERT.
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
    """Stage one job in the open transaction; one round trip.

    Omitted options come from the registration (`@job`), if any, else from the schema.

    Args:
        connection: A SQLAlchemy Session or Connection, a psycopg connection or cursor, or django.db's `connection`;
            never committed. In autocommit mode the INSERT is a transaction of its own.
        job: Job name, such as `"shop.jobs.send_receipt"`, or function.
        args: Positional arguments, sent as JSON; checked against a registered function's parameters.
        kwargs: Keyword arguments, likewise.
        queue: Queue name.
        priority: Lower runs first; 0 by default.
        run_at: Earliest start, with time zone.
        run_in: Earliest start from now by this machine's clock, as a timedelta or seconds.
        expires_at: Latest start, with time zone.
        tag: Where it was staged, for operators: `"storage.create_annotation"`.
        max_attempts: Attempts before it is dead; 0 for no limit.
        timeout_seconds: Timeout per attempt.
        context: Trace and log context, as JSON.
        key: Customer, tenant or resource, for queue rules: up to 255 characters, a whole number, None, or a function of
            the job's arguments that returns one of these.
        unique_key: Of the waiting jobs with this name and unique key, the enqueuer keeps one; the others end in
            `finished_jobs` as superseded. Running jobs do not count. Given as `key`.
        keep: Which one: `"first"` (default) or `"last"`. The latest job decides.
        quiet: Time without another job of the unique key before it runs, from the transaction's start or `run_at`; at
            most a year.
        after: Jobs that must finish first: an id that `stage` returned, a `drain.After`, a list of these, or a function
            of the job's arguments that returns such values or None. An empty list: none.
        on_failure: If one of them dies, "cancel" this job (default), "run" it, or "hold" it until the dead one has been
            retried and finishes. "only": run it if one dies, and supersede it if one finishes.
        flow: Unfinished batch or flow that the job joins, or its id. `after` then also takes names of its nodes.
        node: The job's name in the flow: up to 255 characters.
        idempotency_key: Return the existing job if this role staged one with this key. Waits for an open transaction
            with the same key; under repeatable read, retry on the serialization failure that follows.
        idempotency_period: Retention of a new idempotency key; a week by default.

    Returns:
        Id of the job, or of the one with the idempotency key.

    Raises:
        StageError: Invalid job. Nothing was sent; the transaction is unchanged.
        IdempotencyConflictError: The key's job has another name or other arguments. The transaction is unchanged.
        SchemaError: The tables are missing. The transaction is aborted.
        The driver's own errors: A CHECK of the schema, named in the error; a job of `after` is unknown; or the flow has
            ended, or has such a node.
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
    """Stage one job per element of `arguments`, 10,000 per statement.

    Args:
        connection: As for `stage`.
        job: As for `stage`.
        arguments: Positional or keyword arguments of each job: `[(1,), (2,)]` or `[{"user": 1}, {"user": 2}]`. May be
            a generator.
        options: As for `stage`, without idempotency; key functions get each job's arguments.

    Returns:
        Ids in order.

    Raises:
        StageError: As for `stage`. Earlier elements may be staged: roll back, or use a savepoint.
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
