"""One-shot health check for monitoring systems: `drain check`.

    reading     bounded reads of PostgreSQL and Redis
    thresholds  levels, thresholds, and findings
    command     `drain check`

A check is bounded in time, changes nothing, and needs only the inspection role.
"""
