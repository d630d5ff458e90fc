"""Commands of `drain`: each reads its arguments, makes one call and prints the result.

    setup       init, roles
    run         run: the enqueuer
    work        work: the workers
    health_options  health of `run` and `work`
    rq_options  options of `work` that RQ's own worker has too
    status      status: how many jobs are in each state
    watching    status --watch
    jobs        list, show
    explain     explain: why one job waits
    top         top: live queues and jobs
    trace       trace: times of a job's hops
    stack       stack: where a job is now
    audit       audit: lost, duplicated or stuck jobs
    flow        flow: list, show, explain
    flow_forecast  flow forecast
    flow_changes   flow cancel, retry, pause, resume
    cron        cron: schedules
    cancel      cancel: waiting or running jobs
    emit        emit: an event for waiting jobs
    move        jobs move: another queue, priority or time
    selecting   options that select jobs
    dead        dead: list, groups, show, retry, discard
    queue       queue: set, show, list, unset
    pausing     queue pause, resume
    prune       prune: old finished jobs
    database    connection to PostgreSQL

Expected errors are one line on standard error with exit code 1; wrong usage exits with 2. Passwords are never printed.
`drain.__main__` assembles the commands, with those of extensions.
"""
