"""Dispatch, a design: the leader's move leases a job to a worker process, which only reads it.

Redis holds hints alone. A process registers under a name that is never used again. The leader leases up to its
capacity, counted from the rows, commits durably, and pushes id and token to the process' own list. The process reads
the rows leased to it, by its list or by a look at all of them, leaves out those that it knew before it asked, and looks
at the clock when it begins. Everything else takes the shared list and the claim by delivery number.
"""
