"""workers/process."""
