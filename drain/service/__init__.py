"""drain/service."""
