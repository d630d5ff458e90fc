"""One attempt at a claimed job, from the call of its function to the row that records the outcome.

In the order in which a job passes:

    attempt           call the function of a claimed job, in this thread or in the event loop; conclude the outcome
    calling           the call itself, with Django's connections renewed and the result kept
    around            hooks of the application that are entered around the call
    alarm             SIGALRM, by which a job in the main thread is interrupted
    thread_alarm      exceptions by which a job in another thread is interrupted
    isolation         the same attempt in a child process, which also records the outcome
    child_stack       where an isolated job is, asked by the worker process
    forked            the end of a child that a job has forked
    outcome           outcomes as plain values: finished, failed, deferred, given up, interrupted
    decision          what follows from an outcome: which statement, which word, which log line; without a store
    recorder          the one door to the tables: executes a decision under the fence of the claim
    death             why a job is dead, for RQ's books and exception handlers
    completion_hooks  hooks of the application that are called once a job is finished or dead
    rq_calls          calls by RQ's own worker: the delivery that one names, and what RQ is answered
    rq_books          what is written into RQ's own books about dead jobs, and about jobs that plain RQ jobs depend on

What always holds here: whatever a job raises becomes an outcome and never stops the worker. An outcome is written only
under the fence of its claim; if the claim is stale, only `stale_finishes` gets a row. The statement is committed
before anything is logged, counted, or written into RQ's books: RQ may miss the end of a job, but never shows an end
that PostgreSQL does not have.
"""
