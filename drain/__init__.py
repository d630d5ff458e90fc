"""Jobs that are staged in your own Postgres transaction, and drained into Redis once it has committed.

    from drain import stage

    with Session(engine) as session, session.begin():
        session.add(order)
        stage(session, "shop.jobs.send_receipt", [order.id])

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
from drain.registry import job
from drain.stage import stage, stage_many

if TYPE_CHECKING:
    from workers import Dead, Defer, current_job, transaction

__all__ = [
    "Dead",
    "Defer",
    "DrainError",
    "StageError",
    "current_job",
    "job",
    "stage",
    "stage_many",
    "transaction",
]

_OF_THE_WORKERS = ("Dead", "Defer", "current_job", "transaction")


def __getattr__(name: str) -> Any:
    """Look a name of `workers` up at its first use: those who only stage need nothing of it."""
    if name not in _OF_THE_WORKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # By its name: the drain's own modules know nothing of the workers.
    from importlib import import_module

    return getattr(import_module("workers"), name)
