"""The application's side of jobs: register functions, stage jobs in the application's own transaction.

    options          name and options of a job: queue, attempts, timeout, lease
    keys             key, unique key and quiet time
    stager           typed staging of one function's jobs
    registry         `@job`: functions by name, the only ones that workers run
    objectives       service level objectives: 99% start within 5s
    signature        arguments checked against a function's parameters
    annotations      values checked against, and decoded by, an annotation
    codecs           argument types unknown to JSON
    stage_options    typed options of `stage`
    values           checks of column values
    rows             a job's row and its INSERT
    executors        statements on the application's connection
    async_executors  the same, awaited
    staging          `stage` and `stage_many`
    async_staging    `astage` and `astage_many`
    idempotency      jobs staged once per idempotency key
    timetable        ticks of a cron line in a time zone
    schedules        `schedule`, `unschedule`, and schedules declared by `@job`
    results          `state`, `result` and `aresult`
    cancelling       `cancel`: waiting and running jobs
    progress         `progress`: what a running job reported

Staging never commits or rolls back. A job that cannot be staged is refused before anything is sent, so the transaction
is unchanged.
"""
