"""Admission: which of the due rows may leave `staged_jobs` now, as the rules of their queues say.

In the order in which a row passes:

    admission  how many jobs of each queue may leave now
    depths     how many ids the lists in Redis may hold

What always holds: the leader alone decides, in its own thread; what it remembers is rebuilt by the next leader.
"""
