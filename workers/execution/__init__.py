"""One attempt at a claimed job, from the call of its function to the recorded outcome.

In the order of a job's path:

    attempt           calls the function, concludes the outcome
    calling           the call, with Django's connections renewed and the result kept
    around            hooks entered around the call
    alarm             SIGALRM, which interrupts a job in the main thread
    thread_alarm      exceptions that interrupt a job in another thread
    isolation         an attempt in a child process, which also records the outcome
    child_stack       where an isolated job is
    forked            the end of a child that a job has forked
    outcome           outcomes as values
    decision          consequences of an outcome: statement, word, log line; pure
    recorder          the only writer of outcomes, under the claim's fence
    death             why a job is dead
    completion_hooks  hooks called once a job is finished or dead
    rq_calls          calls by RQ's own worker
    rq_books          RQ's records of dead jobs, and of jobs that RQ jobs depend on

Whatever a job raises becomes an outcome. It is written only under the fence of its claim; a stale claim only adds to
`stale_finishes`. The statement is committed before anything is logged, counted or sent to RQ, which never shows an
end that PostgreSQL lacks.
"""
