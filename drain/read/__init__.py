"""Every number and list that a person, a metric, an alert or a page shows. Nothing here writes.

    snapshots         transactions in which all of this is read at one instant
    queries           lists of jobs, one job whole, names of queues, the leader
    causes            how much of the rules of a queue is in use, and so why a job waits
    tokens            which rates are used up
    waiting_by_cause  numbers of waiting jobs, by the cause for which they wait
    states            numbers of jobs in each state, from a bounded part of each table
    claimed           jobs that workers have claimed: the one first that runs longest
    queue             all numbers of one queue, and what follows from them: overdue, stalled, unattended
    queues            those of all queues, read at one instant
    system            all queues, the leader, and what runs, for `drain status`, `drain top` and `drain check`
    capacity          free and busy workers of queues: the definitions
    tracebacks        tracebacks as texts: the innermost frame in the application's own code
    dead_groups       dead jobs in groups: of one name, whose error came from one place in the code
    tags              tags of the jobs that are next in line
    table_stats       rows, dead rows and bytes of the tables, and what keeps vacuum back
    explain           the one thing for which a job waits now, and when it will probably start
    queue_overview    jobs that ended in each step of time, and due jobs by key, for `drain web`

The states themselves are conditions in `drain.tables.columns`.
"""
