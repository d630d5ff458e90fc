"""Every number and list that a person, a metric, an alert or a page shows. Nothing here writes.

    queries         lists of jobs, one job whole, names of queues, the leader
    wait_reasons    how much of the rules of a queue is in use, and so why a job waits
    wait_counts     numbers of waiting jobs, by the reason for which they wait
    stalls          queues whose jobs wait for a worker, and none finishes
    claimed         jobs that workers have claimed: the one first that runs longest
    dead_groups     dead jobs in groups: of one name, whose error came from one place in the code
    tags            tags of the jobs that are next in line
    table_stats     rows, dead rows and bytes of the tables, and what keeps vacuum back
    activity        rates, waits and running jobs of all queues, for `drain top` and `drain check`
    system          numbers of jobs in each state, for `drain status` and the metrics
    queue_overview  numbers of all queues, each counted up to a bound, for `drain web`

The states themselves are conditions in `drain.tables.columns`, so that all of these agree at any instant.
"""
