"""Connections to PostgreSQL, and the schema of the database.

    url        connection string for libpq, and texts for people, from a database URL
    postgres   connections in which every wait has an upper bound, and errors that never show a password
    async_postgres  the same for connections of an event loop
    refusals   poolers that refuse, or ignore, the settings that a client sends as it connects
    cursor     cursors whose BEGIN and COMMIT travel with the first and the last statement of a transaction
    deadline   one thread that acts when a time limit is over
    wakeup     ends the wait of one thread, without a lock
    pooler     check that a connection keeps its session, as the leader's lock needs it
    locks      all advisory locks, by name
    schema     `schema.sql` and migrations: installed, and compared with the version that this program knows
    qualified  the schema of our tables before their names, for statements in others' transactions
    names      names of our objects, and check that they are free
    grants     rights of each role, as data
    roles      SQL that makes these roles

What always holds here: connections are in autocommit mode, and transactions begin where the code says so. No call
waits for ever: libpq's waits have upper bounds, and so has each block under `postgres.time_limit`. No text that people
read shows a password.
"""
