"""A model of the protocol at the level of its SQL statements, checked in every interleaving.

Read in this order:

    postgres    what PostgreSQL guarantees each statement: snapshots, row locks, re-checks, lost commits
    atoms       begin, commit, and the list in Redis
    delivery    the core: statements, each with the name of the SQL constant that it models; programs, which order
                them; scenarios, with what can go wrong, what must hold, and mutants that break it
    modules     the other parts of the protocol, a file or package each; waits and dispatch are designs, whose
                docstrings propose the SQL
    checker     the search

`python -m proof` runs all; docs/design/proof.md says what is proved, and within which bounds.
"""
