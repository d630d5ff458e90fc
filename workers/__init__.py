"""Workers: claim a job in Postgres, run the function that is registered under its name, finish it.

    from drain import job

    @job(queue="mail", max_attempts=5, timeout_seconds=30)
    def send_receipt(order_id: int) -> None: ...

    send_receipt.stage(session, 42)

One job's way through these modules:

    registry    which function belongs to which name; nothing else ever runs
    supervisor  `drain work`: the processes, each of which is a `process`, and what the dead have left behind
    taker       many ids from RQ's lists, claimed in one statement
    attempt     one attempt: look up, read the arguments, call within the time limit
    current     what the running job can ask of its claim
    completion  the transaction in which a job's writes and its finish are one commit, on its `job_connection`
    errors      what a job may raise: Defer, Dead; and see raised: LeaseLostError
    outcome     what becomes of it: finished, tried again later, deferred, or dead
    finisher    many finished in one statement; `recording` writes down whatever else became of one

Beside it:

    entry       the same for a job alone: what an unmodified RQ worker calls with the job's id
    keeper      a thread that extends each `lease`, and tells a job when its own is lost
    hand        where the threads of a process meet; `journal` is the same for the supervisor's eyes
    loop        `async def` jobs, many at once; `isolation`: a job in a child process of its own
    rq_side     what RQ's tools see and command; `housekeeping`: memory, grace, and a parent that is gone

What always holds: a job runs only while its claim holds, and is finished only by the latest claim. A claim
that is refused does nothing. Whatever a job raises is recorded, and never stops the worker.
"""

from drain.jobs.registry import job
from workers.context.current import CurrentJob, current_job
from workers.context.transaction import psycopg_transaction, transaction
from workers.errors import Dead, Defer, JobTimeoutError, LeaseLostError, NoCurrentJobError, TransactionError

__all__ = [
    "CurrentJob",
    "Dead",
    "Defer",
    "JobTimeoutError",
    "LeaseLostError",
    "NoCurrentJobError",
    "TransactionError",
    "current_job",
    "job",
    "psycopg_transaction",
    "transaction",
]
