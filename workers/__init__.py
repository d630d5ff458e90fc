"""Workers: claim a job in Postgres, run its registered function, finish it.

    from drain import job

    @job(queue="mail", max_attempts=5, timeout_seconds=30)
    def send_receipt(order_id: int) -> None: ...

    send_receipt.stage(session, 42)

The path of a job; each package has its own map:

    command     `drain work`
    supervisor  processes: started, replaced, ended
    process     threads of one process: fetch and claim, run, record
    lease       duration and extension of a claim, interruption of its job
    execution   one attempt: call the function, decide, record
    context     API of a running job: its claim, and a transaction with its finish
    measures    counts of ended jobs
    handover    recovery of jobs left by a killed process
    entry       the function that an unmodified RQ worker calls
    plain       plain RQ jobs, in a process of RQ's own

Supporting:

    errors      exceptions for and from jobs
    exits       exit codes and signals
    options     options of `drain work`
    stores      availability of PostgreSQL and Redis

A job runs only while its claim holds, and only the latest claim finishes it. A job's exception is recorded, and never
stops the worker.
"""

from drain.jobs.registry import job
from drain.workers.context.async_steps import (
    async_psycopg_step_transaction,
    async_step,
    async_step_transaction,
)
from drain.workers.context.async_transaction import async_psycopg_transaction, async_transaction
from drain.workers.context.current import CurrentJob, current_job
from drain.workers.context.steps import psycopg_step_transaction, step, step_transaction
from drain.workers.context.transaction import psycopg_transaction, transaction
from drain.workers.context.waits import async_sleep, async_wait_for, sleep, wait_for
from drain.workers.errors import (
    Dead,
    Defer,
    EventTimeoutError,
    JobCancelledError,
    JobTimeoutError,
    LeaseLostError,
    NoCurrentJobError,
    RateLimited,
    Retry,
    StepError,
    TransactionError,
    UnfitResultError,
)

__all__ = [
    "CurrentJob",
    "Dead",
    "Defer",
    "EventTimeoutError",
    "JobCancelledError",
    "JobTimeoutError",
    "LeaseLostError",
    "NoCurrentJobError",
    "RateLimited",
    "Retry",
    "StepError",
    "TransactionError",
    "UnfitResultError",
    "async_psycopg_step_transaction",
    "async_psycopg_transaction",
    "async_sleep",
    "async_step",
    "async_step_transaction",
    "async_transaction",
    "async_wait_for",
    "current_job",
    "job",
    "psycopg_step_transaction",
    "psycopg_transaction",
    "sleep",
    "step",
    "step_transaction",
    "transaction",
    "wait_for",
]
