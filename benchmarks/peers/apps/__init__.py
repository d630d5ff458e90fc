"""One module for each peer, imported in its own environment.

Each defines the jobs `noop`, `cpu`, `wait`, `update` and `started`, and three functions:

    prepare()             its tables, in a fresh database
    fill(work, jobs)      so many jobs, by the quickest way that it documents
    producer()            a function that commits one `started` job; one producer for each thread
"""
