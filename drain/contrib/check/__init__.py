"""One look at the whole system for a program that watches it: `drain check`.

    reading     asks PostgreSQL and Redis, each within a bound, whatever they do
    thresholds  levels, thresholds, and what each of them says of a look
    command     `drain check`

What always holds: a look takes no longer than it may; it changes nothing, and needs only the rights of inspection.
"""
