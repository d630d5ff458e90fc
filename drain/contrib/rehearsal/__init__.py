"""Rehearsal: run ended jobs with today's code, in transactions that are always rolled back.

    past         ended jobs, from `dead_jobs` or the archive
    session      session whose transaction cannot be committed, and its writes
    lending      connections on that session, for the job
    rehearsal    one job, executed by the workers' runner
    isolated     the same in a separate process
    difference   how two ends of a job differ
    report       output for humans and as JSON
    command      `drain rehearse`

No row of job-drain changes: nothing is claimed, finished or staged outside the transaction, whose commit PostgreSQL
refuses. Other effects are real: mail, requests, Redis, and connections of the job's own, which `drain rehearse` keeps
read-only by default.
"""
