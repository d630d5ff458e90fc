"""Interleavings of the real statements: a seed decides which one runs next, and when faults happen.

    gate        holds each statement and Redis command of a program until it is released
    sessions    connections to the servers, which outlive kills
    schedule    chooses, replays and shrinks
    history     what each job went through, from triggers of the database, as words of an automaton
    programs    the product's own code, as applications, leaders and workers
    modules     the programs that run together, and their invariants

`python -m tests.interleavings --help` runs as many schedules as wanted, with mutants of the product.
"""
