"""The lease of a claim: how long it holds, who extends it, and how its job is interrupted.

In the order in which a job passes:

    lease          how long a claim holds, as far as this process knows
    interruption   when and why a running job is interrupted; the runner of the job says how
    frames         where running code is: file, line and function of each call
    heartbeat      a thread that extends leases and interrupts jobs when that is due
    extension      one statement that extends all leases of a process, and what follows from a refusal
    database       a connection of one thread, opened when it is needed, and again whenever it broke

What always holds here: a lease is extended from the claim on until its outcome is recorded, by one statement for all
leases of a process. A lease knows nothing of the job that runs under it, nor of the heartbeat; an interruption knows
the lease; the heartbeat knows both. Once `Interruption.stop` has returned, nothing is raised in the job any more.
"""
