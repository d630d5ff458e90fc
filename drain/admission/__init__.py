"""Admission: which of the due rows may leave `staged_jobs` now, as the rules of their queues say.

    rules            the rules of a queue: their texts, and what contradicts what
    options          rules as people write them, in Python, in a file and on the command line
    declared         rules that a file declares, and how they differ from those of the database
    pauses           which queues, job names and keys are paused

Nothing here writes to `queues` or `queue_pauses`: `drain.queues` and `drain queue` do, and the leader follows.
"""
