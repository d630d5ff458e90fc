"""Jobs as an application sees them: it registers functions, and stages jobs in its own transaction.

    options          name and options of a job: queue, attempts, timeout, lease
    keys             key, unique key and quiet time of a job
    stager           staging of the jobs of one function, with the types of its parameters
    registry         `@job`: functions by name; a worker imports the job modules, and runs no other function
    objectives       the service level objective of a job or a queue: 99% start within 5s
    signature        what a job's function takes: arguments are checked as they are staged, and read by its annotations
    annotations      which values fit a parameter, and how a value is made of what JSON has held
    codecs           types of arguments that JSON does not know
    stage_options    the options of `stage`, with their types
    values           checks of what an application gives
    rows             the row of a job, and the statement that stages it
    executors        statements in the transaction of an application, on whatever connection it has
    async_executors  the same, awaited
    staging          `stage` and `stage_many`: the INSERT into `staged_jobs`
    async_staging    `astage` and `astage_many`
    idempotency      a job that is staged once for an idempotency key
    timetable        the ticks of a cron line in a time zone
    schedules        `schedule` and `unschedule`: jobs that are staged at each tick; those that `@job` declares
    results          `state`, `result` and `aresult`: what became of one job
    cancelling       `cancel`: jobs that wait or run are given up
    progress         `progress`: what a running job has reported of its progress

What always holds: staging joins the transaction of the application, and never commits it or rolls it back. A job that
cannot be staged is refused before anything is sent, so that the transaction is unchanged.
"""
