"""Every statement that moves a job from one table to the next. No other code writes to these tables.

Which table a row is in is its state, and a statement stands in the module of the table that the row leaves:

    staged     the application ──► staged_jobs; due, expired or unreadable rows leave it
    claims     of jobs in flight, each by one worker
    leases     of these claims: extended, or given back
    outcomes   of these claims: finished, tried again, deferred, interrupted, given up
    redeliveries  of jobs in flight, under a new number
    dead       retried or discarded by a person
    finished   by the day, archived
    bulk       runs that stage by the million, and their side tables
    stale      what was refused, for people to see
    state      the enqueuer's own notes

Each function is one statement on a psycopg connection. Whether that is in a transaction, and at which
isolation level, is for the caller to say; the docstrings tell what they rely on.
"""
