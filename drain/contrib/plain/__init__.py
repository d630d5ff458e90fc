"""Plain RQ jobs: jobs that were enqueued by RQ itself, run by a worker of RQ's own in a child of the worker process.

The modules, in the order in which a job passes:

    handler          for `drain.workers`: checks what the options name, and starts the RQ process
    jobs             thread of the worker process that passes each job to the RQ process
    rq_process       the RQ process: its fork, its state for the parent, and what the child does
    channel          the socket between the two processes
    channel_worker   RQ's worker, whose jobs come through the channel

What always holds: the RQ process is forked before its parent starts a thread or opens a connection. A job that RQ has
not begun when its process ends goes back into its list; one that RQ has begun is RQ's.
"""
