"""Read-only queries behind every status, metric, alert and page.

    snapshots         read transactions at one instant
    queries           job lists, one whole job, queue names, the leader
    causes            rule usage of queues, and why jobs wait
    tokens            used-up rates
    waiting_by_cause  waiting jobs by cause
    states            jobs by state
    dependencies      predecessors and successors of one job
    flows             flows, their members and states
    membership        the flow that a job belongs to
    unfinished_flows  unfinished flows by state, bounded
    flow_forecast     when a flow ends
    flow_graphs       order and critical path of a flow's nodes
    claimed           claimed jobs, longest first
    queue             numbers of one queue: overdue, stalled, unattended …
    queues            numbers of all queues
    system            queues, leader and running jobs
    capacity          free and busy workers
    tracebacks        the application's frames in tracebacks
    dead_groups       dead jobs by name and place of the error
    tags              tags of the next jobs in line
    table_stats       rows and bytes of the tables; vacuum
    explain           why one job waits, and until when
    queue_overview    finished jobs by time, due jobs by key

States are conditions in `drain.tables.columns`.
"""
