"""drain/enqueuer."""
