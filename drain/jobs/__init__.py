"""Jobs as an application sees them: it registers functions, and stages jobs in its own transaction.

    options      name and options of a job: queue, attempts, timeout, lease
    keys         key, unique key and quiet time of a job
    registry     `@job`: functions by name; a worker imports the job modules, and runs no other function
    callers      statements in the transaction of an application, on whatever connection it has
    qualified    the schema of our tables, before their names in these statements
    values       checks of what an application gives
    staging      `stage` and `stage_many`: the INSERT into `staged_jobs`
    idempotency  a job that is staged once for an idempotency key
    timetable    the ticks of a cron line in a time zone
    schedules    `schedule` and `unschedule`: jobs that are staged at each tick; those that `@job` declares
    cancelling   `cancel`: jobs that wait or run are given up

What always holds: staging joins the transaction of the application, and never commits it or rolls it back. A job that
cannot be staged is refused before anything is sent, so that the transaction is unchanged.
"""
