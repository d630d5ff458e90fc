"""`drain.contrib.django.transaction()`: what a job writes through Django's ORM and the job's finish are one commit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


def transaction(using: str = "default") -> AbstractContextManager[Any]:
    """Open a block in which Django's ORM writes; the writes and the job's finish commit together at its end.

    Within the block, `atomic()` is a savepoint, and Django refuses `commit()`. If the block raises, all of it is rolled
    back, and the job fails or retries as by any exception. Once it has committed, the job is finished, and whatever it
    does or raises afterwards, as in `on_commit()`, changes nothing about that.

    It is for jobs that are functions: Django's ORM is synchronous. An `async def` job calls, by asgiref's
    `sync_to_async`, a function that has the block.

    Args:
        using: Alias in Django's DATABASES of the database in which the jobs are, the one that DRAIN_DATABASE_URL names.

    Returns:
        A context manager, whose value is Django's connection; `drain.stage` takes it too.

    Raises:
        LeaseLostError: Another worker has claimed the job; everything is rolled back.
        JobCancelledError: The job was cancelled; everything is rolled back.
        NoCurrentJobError: No job is running here.
        TransactionError: The job has, or had, its transaction already; or this connection of Django's could not commit
            together with the finish: it leads to another database, is not psycopg 3, or is within an `atomic()`.
    """
    # Imported here: programs that only stage do without the modules of workers.
    from drain.contrib.django import job_transaction

    return job_transaction.transaction(using)
