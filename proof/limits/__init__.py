"""Limits of running jobs and ordered keys: the leader's admission, over the core's deliveries."""
