"""Transactions of a job and its steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from drain.workers.context.step_options import WithOptions

F = TypeVar("F", bound=Callable[..., Any])


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


def _with_options(step: F) -> WithOptions[F]:
    def options(**chosen: Any) -> Any:
        from drain.contrib.django import job_transaction

        return job_transaction.step_transaction.options(**chosen)

    cast(Any, step).options = options
    return cast("WithOptions[F]", step)


@_with_options
def step_transaction(
    name: str, function: Callable[..., Any], /, *args: Any, using: str = "default", **kwargs: Any
) -> Any:
    """Call a function whose ORM writes commit together with the step's result, exactly once.

    As `drain.step_transaction`, but the function gets no session. `on_commit()` callbacks run after the step's commit.

    Args:
        name: As for `drain.step`.
        function: Called with `args` and `kwargs`, within `atomic()`.
        using: As for `transaction`.

    Returns:
        As `drain.step`.

    Raises:
        StepError, UnfitResultError, LeaseLostError, JobCancelledError, NoCurrentJobError: As `drain.step`; all is
            rolled back.
        TransactionError: As `transaction`, or the job's transaction is open or has committed.
    """
    from drain.contrib.django import job_transaction

    return job_transaction.step_transaction(name, function, *args, using=using, **kwargs)
