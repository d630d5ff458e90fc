"""Admission: which of the due rows may leave `staged_jobs` now, as the rules of their queues say.

In the order in which a row passes:

    rules            the rules of a queue: their texts, and what contradicts what
    options          rules as people write them, in Python, in a file and on the command line
    declared         rules that a file declares, and how they differ from those of the database
    pauses           which queues, job names and keys are paused
    admission        how many jobs of each queue may leave now
    depths           how many ids the lists in Redis may hold

What always holds: the leader alone decides, in its own thread; what it remembers is rebuilt by the next leader. Nothing
here writes to `queues` or `queue_pauses`: `drain.queues` and `drain queue` do, and the leader follows.
"""
