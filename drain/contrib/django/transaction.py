"""Transaction of a job."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


def transaction(using: str = "default") -> AbstractContextManager[Any]:
    """Open a block whose ORM writes commit together with the job's finish.

    Within the block `atomic()` is a savepoint, and Django refuses `commit()`. If the block raises, everything is rolled
    back, and the job fails or retries as usual. Once committed the job is finished, even if it fails later,
    as in `on_commit()`.

    Django's ORM is synchronous: an `async def` job calls a function with this block by asgiref's `sync_to_async`.

    Args:
        using: Alias in DATABASES of the jobs' database, the one of DRAIN_DATABASE_URL.

    Returns:
        A context manager for Django's connection, which `drain.stage` accepts.

    Raises:
        LeaseLostError: Another worker has claimed the job; everything is rolled back.
        JobCancelledError: The job was cancelled; everything is rolled back.
        NoCurrentJobError: No job is running in this context.
        TransactionError: The job already has or had its transaction; or Django's connection cannot commit the finish:
            another database, not psycopg 3, or within an `atomic()`.
    """
    # Programs that only stage do not load the worker modules.
    from drain.contrib.django import job_transaction

    return job_transaction.transaction(using)
