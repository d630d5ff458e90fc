"""Rehearsal: today's code runs jobs that have ended, in transactions that are always rolled back.

    past         jobs that have ended, from `dead_jobs` or the archive, and how each has ended
    session      a session whose one transaction cannot be committed, and what was written in it
    lending      connections on that session, which jobs get for their transactions
    rehearsal    one job, run by the runner of the workers, and how it ended now
    isolated     the same in a process of its own
    difference   how two ends of a job differ
    report       how rehearsed jobs end now, for people
    command      `drain rehearse`

What always holds: no row of ours changes, since nothing is claimed, finished or staged beyond the transaction that is
rolled back. PostgreSQL itself refuses its commit. What a job does elsewhere is done for real: mail, requests, Redis,
and other connections, which `drain rehearse` keeps read-only unless it is told otherwise.
"""
