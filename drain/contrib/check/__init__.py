"""One look at the whole system for a monitoring program: `drain check`.

    reading     bounded reads of PostgreSQL and Redis
    thresholds  levels, thresholds, and findings
    command     `drain check`

A look is bounded in time, changes nothing, and needs only inspection rights.
"""
