"""The lease of a claim: how long it holds, who extends it, and how its job is interrupted.

In the order of a job's path:

    lease          how long a claim holds, as far as this process knows
    interruption   when and why a running job is interrupted; its runner knows how
    frames         where running code is: file, line and function of each call
    heartbeat      thread that extends leases and interrupts jobs when due
    extension      one statement that extends all leases of a process
    database       connection of one thread, reopened whenever it breaks

A lease is extended from the claim until the outcome is recorded. It knows neither its job nor the heartbeat; an
interruption knows the lease; the heartbeat knows both. After `Interruption.stop`, nothing is raised in the job.
"""
