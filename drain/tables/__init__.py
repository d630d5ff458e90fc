"""Every statement on the tables, by the state that a row leaves. No other code writes to these tables.

The table that a row is in is its state, and moving is DELETE and INSERT in one statement. In the order in which a job
passes:

    columns          lists of columns and conditions of indexes, each of them once, for all modules
    heads            the first row of each queue, by loose index scans
    inserts          applications insert, one row or many
    staged           bulk runs insert; rows that are due move in flight, or are given up
    lanes            the due rows of a queue: which queues have any, and the rows at their heads
    bulk             runs that stage jobs by the million
    unique           waiting jobs that give way to another one with their unique key
    idempotency      keys under which a job is staged once
    claims           a job in flight becomes one worker's, under a token and a lease
    fences           the identity of a claim, as a value and as conditions on its row
    limits           attempts, timeout and lease of a claim, as the worker's registration has them
    leases           leases of claims, extended by heartbeats or given back
    finishes         a claimed job is finished: by its worker, or in its own transaction
    async_finishes   finishes in the transaction of an async job
    outcomes         a claimed job is tried again, deferred, interrupted or given up
    stale            outcomes that were refused because their claim was stale
    keyed            due rows of a queue with rules: heads of its keys and lanes, the next rows of many of them
    running          which admitted jobs of a queue still run, and which have begun lately
    redeliveries     jobs in flight that get a new delivery number, because a worker or Redis has lost them
    finished         daily partitions of finished jobs: made ahead, archived, dropped
    selections       jobs that wait or run, selected by id, queue, name, tag and key
    cancellations    jobs that wait or run and are given up by a person or an application
    changes          jobs that wait get another queue, priority or time
    dead             jobs that were given up: revived or discarded by a person
    crons            schedules: a job is staged at each tick
    leader_progress  the enqueuer's notes: who leads, and how far deliveries have come
    followed         small tables in the leader's memory: a look reads what has changed
    rules            rules of queues, which people change and the leader follows
    pauses           queues, jobs and keys of which nothing starts
    waiting          questions about jobs that wait: the oldest of each kind, the next one to come due
    time_travel      times of all that waits, shifted together by tests

What always holds here:

- Rows are changed and taken out by the modules of their table alone: those of `inflight_jobs` by unique, claims,
  leases, finishes, outcomes, redeliveries, cancellations and changes. tests/unit/test_schema_text.py names for each
  module the tables that it may write to.
- A claimed job is recorded under its fence, or not at all; `fences` alone has the condition, and `drain_finish`.
- A function is one statement, or a few, on a psycopg connection. The caller decides about the transaction and its
  isolation level; a docstring says what the function relies on.
"""
