"""The lease of a claim: its duration, its extension, and the interruption of its job.

    lease          how long a claim holds, as far as this process knows
    interruption   when and why a running job is interrupted
    frames         where running code is
    heartbeat      thread that extends leases and interrupts jobs
    extension      one statement that extends all leases of a process
    database       connection of one thread, reopened whenever it breaks

A lease is extended from the claim until the outcome is recorded. After `Interruption.stop`, nothing is raised in the
job.
"""
