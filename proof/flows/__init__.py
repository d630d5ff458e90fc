"""Flows: a job waits for others; the leader alone reads how these end.

A blocked job and its edges commit together. The leader keeps in memory the snapshot of its last look. A look finds the
waiting edges that changed, or whose jobs ended, in a transaction that this snapshot did not see: whichever of an edge
and an end commits first, the next look sees both. A new leader looks first, then walks over all waiting edges. Found
edges are settled in pages, by a later snapshot and under a lock of the blocked jobs.
"""
