"""Admission: which of the due rows may leave `staged_jobs` now, as the rules of their queues say.

    uniqueness   jobs that share a unique key: one of them stands, the others give way to it

What always holds: the leader alone decides, on its own connection, so that nothing here needs a lock.
"""
