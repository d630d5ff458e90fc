"""The threads of one worker process, in the order of a job's path.

    process           wires, starts and ends the threads; its docstring draws them
    fetcher           thread: pops ids from RQ's lists, returns jobs that wait too long
    claimer           claims fetched jobs in one statement
    inbox             waiting jobs, and unrecorded outcomes
    jobs              a job in the inbox
    prefetch          how many jobs to fetch
    job_runner        main thread: one job at a time
    sharing           batches of jobs that share a transaction
    async_loop        thread: `async def` jobs, many at once
    job_threads       threads: other jobs, several at once
    running           running jobs, and their interruption
    plain_inbox       waiting and running plain RQ jobs
    plain_jobs        the seam for an extension that runs plain RQ jobs
    finisher          thread: records outcomes
    outcome_batch     outcomes recorded together
    end_hooks         thread: calls hooks for ended jobs
    cleanup           clears hashes of ended deliveries
    stale_deliveries  deliveries whose jobs run under an earlier one

Supporting:

    shutdown      stop, stop now, recycle, resign
    stop_signals  handlers of stop signals
    watchdog      thread: memory, supervisor, plain jobs, grace period
    rq_presence   thread: shows tracked jobs to RQ's tools
    rq_worker     the worker that RQ's tools show
    rq_commands   RQ's commands
    stacks        answers about where a job is

Only its own object assigns an attribute; other threads call methods. No thread waits for a lock while a signal handler
may run. A claimed job stays in `inbox.claimed` and the journal until recorded or given back.
"""
