"""drain/database."""
