"""The application's side: register functions, stage jobs in the application's own transaction.

    options          a job's name and options
    keys             key, unique key, quiet time
    dependencies     jobs that wait for others
    stager           typed staging of one function's jobs
    registry         `@job`: the functions that workers run
    objectives       service level objectives
    signature        checks of arguments by parameters
    annotations      values checked and decoded by annotation
    codecs           argument types unknown to JSON
    stage_options    typed options of `stage`
    values           checks of column values
    rows             a job's row and INSERT
    executors        statements on the application's connection
    async_executors  the same, awaited
    staging          `stage` and `stage_many`
    async_staging    `astage` and `astage_many`
    idempotency      jobs staged once per key
    timetable        ticks of a cron line
    schedules        `schedule`, `unschedule`, `@job(cron=...)`
    results          `state`, `result` and `aresult`
    cancelling       `cancel`
    progress         `progress`

Staging never commits or rolls back. Invalid jobs are refused before anything is sent.
"""
