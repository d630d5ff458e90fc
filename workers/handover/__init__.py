"""The handover of jobs from a worker process that has died to its successor.

    journal    the jobs of a process, in memory that it shares with the supervisor
    recovery   finishes, charges or gives back the jobs in the journal of a dead process

What always holds: a job is in the journal from its claim until its outcome is recorded. Even so, a job
is changed only under the fence of its claim.
"""
