"""Flows, a design: blocked jobs, edges to the jobs that they wait for, and the leader's tick that unblocks them.

The leader remembers the snapshot of its last tick. A tick looks at what that snapshot did not see: new edges, against
all finishes and deaths, and new finishes and deaths, against all edges. So it finds each pair in the first tick that
sees both, whichever commits first.
"""
