"""Every statement on the job tables; no other code writes to them.

The table of a row is its state; a move is one DELETE and INSERT statement. In the order of a job's path:

    columns          column lists and index conditions
    heads            first rows of queues, by loose index scans
    inserts          applications insert
    staged           bulk inserts; due rows move in flight; blocked jobs become due
    lanes            due rows by queue and kind
    bulk             runs that stage millions of jobs
    bulk_flows       their jobs as members of a flow
    unique           waiting jobs that give way to others
    idempotency      keys under which a job is staged once
    claims           jobs claimed by workers
    fences           identity of a claim
    limits           attempts, timeout and lease of a claim
    leases           leases extended or given back
    finishes         claimed jobs finished
    async_finishes   the same for async jobs
    steps            results of steps
    predecessors     results of the jobs that a job waited for, and its flow
    flows            batches and flows
    failures         the form of last_error
    outcomes         claimed jobs retried, deferred, interrupted or buried
    keyed            due rows of queues with rules
    running          admitted jobs that run, or began lately
    redeliveries     jobs in flight, renumbered
    finished         daily partitions of finished jobs
    selections       waiting or running jobs selected
    cancellations    waiting or running jobs cancelled
    changes          waiting jobs moved or rescheduled
    dead             dead jobs revived or discarded
    edge_looks       new edges, and ended jobs that others wait for
    edges            edges between jobs, met or changed
    waits            jobs that wait for events or sleep, and the events
    flow_pauses      flows paused and resumed
    gone             rows about deleted jobs
    crons            schedules
    leader_progress  who leads, and how far
    followed         small tables in the leader's memory
    rules            rules of queues
    pauses           queues, jobs and keys that start nothing
    waiting          oldest waiting jobs, next ones due
    time_travel      times shifted by tests

- Only the modules of a table change its rows; tests/unit/test_schema_text.py lists them.
- An outcome is recorded under its claim's fence, defined in `fences` and `drain_finish`, or not at all.
- The caller chooses the transaction and its isolation level.
"""
