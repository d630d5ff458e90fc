"""Context of a running job: its claim, and a transaction that commits with its finish.

In the order of a job's path:

    recorded_steps    steps of an attempt: recorded results, names in use
    current           the running attempt, and `current_job()`
    written_result    the result of a job as JSON
    report            checks of progress reports
    reporter          thread that carries progress to Redis
    log_fields        the running job in its log records
    transaction       `transaction()`: writes and finish in one commit
    steps             `step()` and `step_transaction()`: results kept for later attempts
    step_options      retries within the attempt, timeouts of async steps, and undos
    undoing           the job that undoes the steps of a dead one
    related           its predecessors and its flow
    predecessors      reads of both
    waits             `wait_for()` and `sleep()`, also for `async def` jobs
    finish_guard      rules of every such transaction
    loading           imports of SQLAlchemy, by one thread at a time
    session           the SQLAlchemy session of that transaction
    connection_cache  connections kept from job to job
    connection        the psycopg connection that commits with the finish
    shared            one transaction of several jobs
    lent_connections  connections lent to jobs of a test
    guarded           code shared by that connection and its async twin
    inherited         such connections in a child forked by a job: cut off

The same for `async def` jobs:

    async_transaction       `async_transaction()` and `async_psycopg_transaction()`
    async_steps             `async_step()` and its transactions
    async_session           the SQLAlchemy session
    async_connection_cache  kept connections
    async_connection        the psycopg connection

For Django's ORM:

    django_connections  Django's connections, renewed between attempts

A job's transaction commits once, with the finish, or not at all, and never after another claim. It belongs to the
process that began it.
"""
