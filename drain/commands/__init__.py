"""Commands of `drain`: each reads its arguments, makes one call and prints the result.

    setup       init, roles
    run         run: the enqueuer
    work        work: the workers
    health_options  health options of `run` and `work`
    rq_options  options of `work` that RQ's own worker has too
    status      status: how many jobs are in each state
    watching    status --watch: repeated status
    jobs        list, show
    explain     explain: why one job waits
    top         top: live queues and running jobs
    trace       trace: when a job passed each process
    stack       stack: where a running job is
    audit       audit: lost, duplicated or stuck jobs
    cron        cron list, pause, resume, run, remove, apply: schedules
    cancel      cancel: jobs that wait or run
    move        jobs move: another queue, priority or time
    selecting   options that select waiting or running jobs
    dead        dead list, groups, show, retry, discard
    queue       queue set, show, list, unset: rules
    pausing     queue pause and resume
    queue_file  queue apply: rules from a file
    prune       prune: drops old days of finished jobs
    database    connection to PostgreSQL

An expected error is one line on standard error with exit code 1; wrong usage exits with 2. Passwords are never printed.
`drain.__main__` assembles the commands, with those of extensions.
"""
