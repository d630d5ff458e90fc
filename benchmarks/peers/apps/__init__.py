"""One module for each peer, imported in its own environment.

Each defines the jobs `noop`, `cpu`, `wait`, `update`, `started`, `killed_before` and `killed_after`, and three
functions:

    prepare()             creates its tables in a fresh database
    fill(work, jobs)      enqueues this many jobs by its fastest documented method
    producer()            makes a function that commits an application row and one `started` job, and returns when
                          the commit returned, by time.monotonic(); one producer for each thread
"""
