"""Every statement on the job tables; no other code writes to them.

The table that a row is in is its state, and a move is one DELETE and INSERT statement. In the order of a job's path:

    columns          column lists and index conditions, each defined once
    heads            the first row of each queue, by loose index scans
    inserts          applications insert, one row or many
    staged           bulk inserts; due rows move in flight or are given up
    lanes            due rows of a queue, and the rows at their heads
    bulk             runs that stage millions of jobs
    unique           waiting jobs that give way to another of their unique key
    idempotency      keys under which a job is staged once
    claims           a job in flight becomes one worker's, under a token and a lease
    fences           the identity of a claim, as a value and as conditions on its row
    limits           attempts, timeout and lease of a claim
    leases           leases, extended by heartbeats or given back
    finishes         a claimed job is finished: by its worker, or in its own transaction
    async_finishes   finishes in the transaction of an async job
    outcomes         a claimed job is retried, deferred, interrupted or given up; refused outcomes
    keyed            due rows of a queue with rules, by key and lane
    running          admitted jobs that still run, or began lately
    redeliveries     jobs in flight that get a new delivery number
    finished         daily partitions of finished jobs: created, archived, dropped
    selections       waiting or running jobs selected by id, queue, name, tag and key
    cancellations    waiting or running jobs given up by a user or an application
    changes          waiting jobs that get another queue, priority or time
    dead             dead jobs, revived or discarded
    crons            schedules: a job is staged at each tick
    leader_progress  who leads, and how far deliveries have come
    followed         small tables that the leader keeps in memory
    rules            rules of queues
    pauses           queues, jobs and keys that start nothing
    waiting          the oldest waiting job of each kind, the next one due
    time_travel      waiting times shifted by tests

- Only the modules of a table change its rows. tests/unit/test_schema_text.py lists the tables of each module.
- An outcome is recorded under the fence of its claim or not at all; only `fences` and `drain_finish` define it.
- A function is one or a few statements. The caller chooses the transaction and its isolation level.
"""
