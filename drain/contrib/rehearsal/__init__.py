"""Rehearsal: run ended jobs with today's code, in transactions that are always rolled back.

    past         ended jobs, from `dead_jobs` or the archive
    session      session whose transaction cannot be committed
    lending      connections on that session, for the job
    rehearsal    one job, executed by the workers' runner
    isolated     the same in a separate process
    difference   how two ends differ
    report       output as text and JSON
    command      `drain rehearse`

Nothing is claimed, finished or staged outside the transaction, whose commit PostgreSQL refuses. Other effects are real:
mail, requests, Redis, and the job's own connections, which `drain rehearse` keeps read-only by default.
"""
