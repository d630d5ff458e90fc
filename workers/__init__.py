"""Workers: claim a job in Postgres, run the function that is registered under its name, finish it.

    from drain import job

    @job(queue="mail", max_attempts=5, timeout_seconds=30)
    def send_receipt(order_id: int) -> None: ...

    send_receipt.stage(session, 42)

One job's way through these rooms, each of which has its own map:

    command     `drain work`, from its options on
    supervisor  the processes: started, replaced, ended
    process     the threads of one process: fetch ids and claim their jobs, run them, record their ends
    lease       how long a claim holds, who extends it, and how its job is interrupted
    execution   one attempt: call the function, decide what follows from its outcome, record it
    context     what a running job may ask for: its claim, and the transaction that commits with its finish
    measures    numbers of the jobs that have ended, in memory that the port of the supervisor reads
    handover    jobs that a killed process has left behind, and how its successor recovers them
    entry       claim and run one job: the function that an unmodified RQ worker calls with the job's id
    plain       plain RQ jobs, in a process of RQ's own

Beside them:

    errors      what a job may raise: Retry, Defer, RateLimited, Dead; and see: LeaseLostError, JobCancelledError
    exits       exit codes and signals of processes
    options     the options of `drain work`
    stores      whether PostgreSQL and Redis answer, with one log line for an outage, and one for its end

What always holds: a job runs only while its claim holds, and is finished only by the latest claim. A claim
that is refused changes nothing. Whatever a job raises is recorded, and never stops the worker.
"""

from drain.jobs.registry import job
from drain.workers.context.async_transaction import async_psycopg_transaction, async_transaction
from drain.workers.context.current import CurrentJob, current_job
from drain.workers.context.transaction import psycopg_transaction, transaction
from drain.workers.errors import (
    Dead,
    Defer,
    JobCancelledError,
    JobTimeoutError,
    LeaseLostError,
    NoCurrentJobError,
    RateLimited,
    Retry,
    TransactionError,
    UnfitResultError,
)

__all__ = [
    "CurrentJob",
    "Dead",
    "Defer",
    "JobCancelledError",
    "JobTimeoutError",
    "LeaseLostError",
    "NoCurrentJobError",
    "RateLimited",
    "Retry",
    "TransactionError",
    "UnfitResultError",
    "async_psycopg_transaction",
    "async_transaction",
    "current_job",
    "job",
    "psycopg_transaction",
    "transaction",
]
