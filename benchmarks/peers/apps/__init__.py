"""One module for each peer, imported in its own environment.

Each defines the jobs `noop`, `cpu`, `wait`, `update`, `started`, `killed_before` and `killed_after`, and three
functions:

    prepare()             its tables, in a fresh database
    fill(work, jobs)      so many jobs, by the quickest way that it documents
    producer()            a function that commits a row of the application and one `started` job, and returns when the
                          commit has returned; one producer for each thread
"""
