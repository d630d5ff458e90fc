"""workers/execution."""
