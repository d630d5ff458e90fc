"""Connections to PostgreSQL, and the schema of the database.

    url        connection strings for libpq
    postgres   connections with bounded waits
    async_postgres  the same for an event loop
    refusals   poolers that refuse startup settings
    cursor     BEGIN and COMMIT sent along with statements
    deadline   time limits of blocks
    wakeup     ends a thread's wait
    pooler     check that a connection keeps its session
    locks      advisory locks
    schema     `schema.sql` and migrations
    qualified  schema-qualified names
    names      names of job-drain's objects
    grants     rights of each role
    roles      SQL that creates the roles

- Connections are in autocommit mode; transactions begin explicitly.
- Every wait is bounded, by libpq or `postgres.time_limit`.
- No printed text shows a password.
"""
