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
    conversations    statements that stage a batch or flow
    markers          the job that ends a flow
    batches          `batch` and `abatch`
    graphs           `Flow`
    flow_progress    `flow_progress`
    events           `emit` and `aemit`
    idempotency      jobs staged once per key
    timetable        ticks of a cron line
    schedules        `schedule`, `unschedule`, `@job(cron=...)`
    results          `state`, `result` and `aresult`
    cancelling       `cancel`
    editing          retries of dead jobs with other arguments
    progress         `progress`

Staging never commits or rolls back. Invalid jobs are refused before anything is sent.
"""
