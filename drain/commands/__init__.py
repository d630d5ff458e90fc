"""Commands of `drain`: each reads its arguments, makes one call and prints the result.

    setup       init, roles
    run         run: the enqueuer
    work        work: the workers
    health_options  options of `run` and `work` about their health
    rq_options  options of `work` that RQ's own worker has too
    status      status: how many jobs are in each state
    watching    status --watch: the status again and again
    jobs        list, show
    explain     explain: why one job waits
    top         top: queues and running jobs, live
    trace       trace: when one job passed which process
    stack       stack: where a running job is now
    audit       audit: is any job lost, doubled or stuck?
    cron        cron list, pause, resume, run, remove and apply: schedules
    cancel      cancel: jobs that wait or run
    move        jobs move: another queue, priority or time
    selecting   options that select jobs which wait or run
    dead        dead list, groups, show, retry and discard
    queue       queue set, show, list and unset: rules of queues
    pausing     queue pause and resume
    queue_file  queue apply: rules from a file
    prune       prune: drops old days of finished jobs
    database    the connection of a command that asks PostgreSQL

What always holds: an expected error is one line on standard error, with exit code 1; wrong usage has exit code 2; a
password is never printed. `drain.__main__` puts the commands together, with those of extensions.
"""
