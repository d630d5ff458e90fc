"""Jobs as an application sees them: it registers functions, and stages jobs in its own transaction.

    options    name and options of a job: queue, attempts, timeout, lease
    registry   `@job`: functions by name; a worker imports the job modules, and runs no other function
    staging    `stage` and `stage_many`: the INSERT into `staged_jobs`
    cancelling `cancel`: jobs that wait or run are given up
    transactions  several statements in the application's transaction, on whatever driver it has

What always holds: staging joins the transaction of the application, and never commits it or rolls it back. A job that
cannot be staged is refused before anything is sent, so that the transaction is unchanged.
"""
