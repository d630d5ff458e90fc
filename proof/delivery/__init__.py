"""Drain, leadership, claims, leases, fences, finishes, and delivery numbers: the core of the protocol."""
