"""Interleavings of the real statements: a seed decides which connection goes on, who is killed, and when leases expire.

    gate        holds each statement and Redis command of a program until it is released
    schedule    chooses, replays and shrinks
    history     what each job went through, from triggers of the database, as words of an automaton
    programs    the product's own code, as applications, leaders and workers
    modules     which programs run together, and what must hold

`python -m tests.interleavings --help` runs as many schedules as wanted, with mutants of the product.
"""
