"""Read-only queries behind every status, metric, alert and page.

    snapshots         transactions that read everything at one instant
    queries           job lists, one whole job, queue names, the leader
    causes            how much of a queue's rules is in use, hence why a job waits
    tokens            which rate limits are used up
    waiting_by_cause  waiting jobs counted by cause
    states            job counts by state, from a bounded part of each table
    claimed           claimed jobs, the longest-running first
    queue             all numbers of one queue, and derived: overdue, stalled, unattended
    queues            the numbers of all queues at one instant
    system            queues, leader and running jobs, for `drain status`, `top` and `check`
    capacity          free and busy workers of queues: the definitions
    tracebacks        the application's innermost frame in a traceback
    dead_groups       dead jobs grouped by name and place of the error
    tags              tags of the next jobs in line
    table_stats       rows, dead rows and bytes of the tables; what holds vacuum back
    explain           why one job waits, and when it will probably start
    queue_overview    finished jobs by time step, due jobs by key, for `drain web`

The states themselves are conditions in `drain.tables.columns`.
"""
