"""Jobs that are staged in your own Postgres transaction, and drained into Redis once it has committed.

    from drain import stage

    with Session(engine) as session, session.begin():
        session.add(order)
        stage(session, "shop.jobs.send_receipt", [order.id])

All that an application needs is imported from here: `job`, what a job asks and raises, and the errors.

One job's way through these modules:

    stage          the application inserts a row into `staged_jobs`, in its own transaction
    registry       which function belongs to which name: `@job`
    transitions    every statement that moves a row from table to table, in the order of a job's life
    enqueuer       one leader takes what is committed and due, in repeatable-read batches
    wire           what is pushed into Redis: RQ's keys and formats
    redelivery     what was pushed and never came back is pushed again
    (workers)      claim it in Postgres, run it, finish it

What always holds: no job is seen before its transaction has committed, nor after it has rolled back;
every committed job ends in `finished_jobs` or `dead_jobs`, whatever dies on the way; it is finished once.
Redis holds nothing that could not be rebuilt from `inflight_jobs`.
"""

from typing import TYPE_CHECKING, Any

from drain.errors import DrainError, StageError
from drain.jobs.registry import job
from drain.jobs.staging import stage, stage_many

if TYPE_CHECKING:
    from workers import (
        CurrentJob,
        Dead,
        Defer,
        JobTimeoutError,
        LeaseLostError,
        NoCurrentJobError,
        TransactionError,
        current_job,
        psycopg_transaction,
        transaction,
    )

__all__ = [
    "CurrentJob",
    "Dead",
    "Defer",
    "DrainError",
    "JobTimeoutError",
    "LeaseLostError",
    "NoCurrentJobError",
    "StageError",
    "TransactionError",
    "current_job",
    "job",
    "psycopg_transaction",
    "stage",
    "stage_many",
    "transaction",
]

# For type checkers each name has its own type, and an unknown one is an error.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Look a name of `workers` up at its first use: an application that only stages needs nothing of it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # By its name: the drain's own modules know nothing of the workers.
        from drain import packages

        value = globals()[name] = getattr(packages.own("workers"), name)
        return value
