"""Workers: claim a job in Postgres, run the function that is registered under its name, finish it.

    from workers import job

    @job(queue="mail", max_attempts=5, timeout_seconds=30)
    def send_receipt(order_id: int) -> None: ...

    send_receipt.stage(session, 42)

One job's way through these modules:

    registry   which function belongs to which name; nothing else ever runs
    entry      what RQ calls with the job's id: claim, run, finish
    attempt    one attempt: look up, read the arguments, call within the time limit
    lease      beside it: a thread that extends the claim, and tells the job when it is lost
    current    what the running job can ask of its claim
    completion the transaction in which a job's writes and its finish are one commit
    errors     what a job may raise: Defer, Dead; and see raised: LeaseLostError
    outcome    what becomes of it: finished, tried again later, deferred, or dead
    work       `drain work`: an RQ worker with all of this at hand

What always holds: a job runs only while its claim holds, and is finished only by the latest claim. A claim
that is refused does nothing. Whatever a job raises is recorded, and never stops the worker.
"""

from workers.completion import transaction
from workers.current import CurrentJob, current_job
from workers.errors import Dead, Defer, JobTimeoutError, LeaseLostError, NoCurrentJobError, TransactionError
from workers.registry import job

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
    "transaction",
]
