"""workers/lease."""
