"""Plain RQ jobs, run by RQ's own worker in a child of the worker process.

In the order of a job's path:

    handler          for `drain.workers`: checks options, starts the RQ process
    jobs             thread of the worker process that passes jobs on
    rq_process       the RQ process
    channel          socket between the two processes
    channel_worker   RQ's worker, fed by the channel

The RQ process is forked before its parent starts threads or connections. A job that RQ has not begun when its process
ends goes back into its list; a begun one is RQ's.
"""
