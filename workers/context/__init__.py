"""Context of a running job: its own claim, and a transaction that commits together with its finish.

In the order in which a job passes:

    current       the attempt that is running here, and `current_job()`, the part of it that a job may see
    report        `CurrentJob.progress()`: checks of what a job reports
    reporter      progress of the jobs of this process, carried to Redis by a thread of its own
    log_fields    id, name and attempt of the running job, in each of its log records
    transaction   `transaction()`: the writes of the job and its finish in one commit
    session       the SQLAlchemy session of that transaction
    kept          connections that a process keeps from one job to the next
    connection    the psycopg connection of that transaction, which commits with the finish

What always holds here: a transaction of a job commits once, with the job's finish, or not at all. A job that
another worker has claimed cannot commit. The transaction belongs to the process that began it. Nothing here is imported
or opened for a job that asks for nothing.
"""
