"""Handover of jobs from a dead worker process to its successor.

    journal    the jobs of a process, in memory shared with the supervisor
    recovery   finishes, charges or returns these jobs

A job is in the journal from claim to recorded outcome, and changes only under the fence of its claim.
"""
