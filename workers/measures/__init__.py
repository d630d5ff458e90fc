"""Measures of the jobs that worker processes have run, for the metrics of `drain work --metrics-port`.

    memory          the measures of one worker slot, in memory that its processes share with the supervisor's port
    worker_metrics  the side of the worker process: counts the jobs that have ended

What always holds: only the present process of a slot writes, and the port reads, without a lock between them. Each
number is one word of memory, and only grows: a process that is killed leaves what it has counted, and its successor
goes on from there. Without a port there is no such memory, and nothing is counted.
"""
