"""A model of the protocol at the level of its SQL statements, checked in every interleaving.

Read in this order:

    postgres    what PostgreSQL guarantees each statement: snapshots, row locks, re-checks, lost commits
    statements  our statements, each with the name of the SQL constant that it models
    programs    application, leader and worker: which statement follows which
    scenarios   what can go wrong, what must hold, and mutants that break it
    checker     the search

`python -m proof` runs all; docs/design/proof.md says what is proved, and within which bounds.
"""
