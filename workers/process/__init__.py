"""The threads of one worker process, and what they share.

The modules, in the order in which a job passes:

    process           wires the threads together, starts and ends them; its docstring draws them
    fetcher           thread: pops ids from RQ's lists, and gives back jobs that wait for too long
    claimer           claims the fetched jobs in one statement, and releases those that do not run
    inbox             jobs that wait to run, and outcomes that wait to be recorded
    jobs              a job in the inbox: claimed, or pending
    prefetch          how many jobs are fetched at a time
    job_runner        main thread: one job after the other
    async_loop        thread: `async def` jobs, many at once
    job_threads       threads: other jobs, several at once
    running           the jobs that run, and their interruption
    plain_inbox       plain RQ jobs that wait and run
    plain_jobs        what runs plain RQ jobs: the seam for an extension
    finisher          thread: records outcomes, many in one statement
    outcome_batch     outcomes that are recorded together
    end_hooks         thread: calls the application's hooks for jobs that have ended
    cleanup           clears the hashes of finished deliveries in Redis
    stale_deliveries  deliveries whose jobs run under an earlier one, and whose dependents wait

Beside the jobs:

    shutdown      stop, stop now, recycle, resign: requested by any thread or signal handler
    stop_signals  the handlers of the signals that stop the process
    watchdog      thread: memory, supervisor, plain jobs, end of the grace period
    rq_presence   thread: shows the tracked jobs to RQ's tools
    rq_worker     the worker that RQ's tools show
    rq_commands   RQ's commands, obeyed by each worker that RQ's tools show
    stacks        answers to those who ask where a job is

What always holds: each attribute is assigned by its own object, and other threads call methods. No thread waits for a
lock while a signal handler may run. A claimed job is in `inbox.claimed` and in the journal until its outcome is
recorded, or until it is given back.
"""
