"""Context of a running job: its own claim, and a transaction that commits together with its finish.

In the order in which a job passes:

    current           the attempt that is running here, and `current_job()`, the part of it that a job may see
    written_result    the result of the job, as the JSON that its row keeps
    report            `CurrentJob.progress()`: checks of what a job reports
    reporter          progress of the jobs of this process, carried to Redis by a thread of its own
    log_fields        id, name and attempt of the running job, in each of its log records
    transaction       `transaction()`: the writes of the job and its finish in one commit
    finish_guard      rules of every such transaction: there is one, and it says why it could not commit
    loading           imports of SQLAlchemy at the first session, by one thread at a time
    session           the SQLAlchemy session of that transaction
    connection_cache  connections that a process keeps from one job to the next
    connection        the psycopg connection of that transaction, which commits with the finish
    lent_connections  lends connections to the jobs of a test, whose transactions are savepoints in that of the test
    guarded           the part of that connection which its async twin has too
    inherited         connections of such transactions in a child that a job forks: cut off, since they are its parent's

For `async def` jobs, with the same rules and statements:

    async_transaction       `async_transaction()` and `async_psycopg_transaction()`
    async_session           the SQLAlchemy session of that transaction
    async_connection_cache  connections that a process keeps from one async job to the next
    async_connection        the psycopg connection of that transaction

For jobs that write through Django's ORM:

    django_connections  Django's connections, renewed between two attempts

What always holds here: a transaction of a job commits once, with the job's finish, or not at all. A job that
another worker has claimed cannot commit. The transaction belongs to the process that began it. Nothing here is imported
or opened for a job that asks for nothing.
"""
