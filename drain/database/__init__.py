"""Connections to PostgreSQL, and the schema of the database.

    url        connection strings for libpq, and URLs without passwords
    postgres   connections with bounded waits
    async_postgres  the same for an event loop
    refusals   poolers that refuse or ignore startup settings
    cursor     BEGIN and COMMIT sent along with statements
    deadline   one thread that enforces time limits
    wakeup     ends a thread's wait, without a lock
    pooler     check that a connection keeps its session
    locks      all advisory locks, by name
    schema     `schema.sql` and migrations: installed, and checked
    qualified  schema-qualified names, for transactions of others
    names      names of job-drain's objects, and check that they are free
    grants     rights of each role, as data
    roles      SQL that creates the roles

- Connections are in autocommit mode; transactions begin explicitly.
- Every wait is bounded, by libpq or `postgres.time_limit`.
- No printed text shows a password.
"""
