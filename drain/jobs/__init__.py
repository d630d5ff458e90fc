"""drain/jobs."""
