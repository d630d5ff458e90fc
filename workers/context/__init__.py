"""workers/context."""
